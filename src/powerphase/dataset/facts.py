"""What `info` and `verify` show of a data set: pairs of label and text."""

from math import isnan

from powerphase.dataset.certificate import Certificate
from powerphase.dataset.layout import PROVENANCE
from powerphase.dataset.recipe import ImportRecipe
from powerphase.dataset.store import Store
from powerphase.grid.limits import limits_of

Facts = list[tuple[str, str]]
"""Pairs of label and text, for display."""

SHOWN_BUSES = 3
"""How many buses with the largest residuals are named."""

MEANINGS = {
    "simulated": "every state satisfies the AC equations to rounding",
    "measured": "states need not satisfy the AC equations",
}


def store_facts(store: Store) -> Facts:
    """The contents of a data set."""
    if store.is_imported:
        return _import_facts(store)
    m, grid = store.manifest, store.grid
    days = f"{m.recipe['start']} to {m.recipe['end']}"
    status = "complete" if m.complete else f"UNFINISHED, {len(m.blocks)} of {m.n_blocks} blocks"
    options = {name: m.recipe[name] for name in ("seed", "dispatch", "setpoint")}
    solved = zip(PROVENANCE, m.provenance, strict=False)
    return [
        ("grid", f"{m.grid}: {m.n_buses:,} buses, {4 * m.n_buses:,} channels"),
        ("", f"{len(grid.branch):,} branches, {len(grid.gen):,} generators"),
        ("lines", _line_text(grid.circuit.n_branches, int(limits_of(grid).is_rated.sum()))),
        ("record", f"{days}, {m.n_steps:,} steps of 15 min, {status}"),
        ("signals", f"{m.edition} ({m.filled_signal_values:,} values filled)"),
        ("options", ", ".join(f"{name} {value}" for name, value in options.items())),
        ("solved by", ", ".join(f"{name} {count:,}" for name, count in solved if count)),
        ("fingerprint", m.fingerprint),
        ("made with", ", ".join(f"{name} {version}" for name, version in m.made_with.items())),
        ("sources", "\n".join(m.attribution)),
    ]


def _import_facts(store: Store) -> Facts:
    """The contents of an imported record."""
    m, recipe = store.manifest, ImportRecipe.from_json(store.manifest.recipe)
    first, last = (str(store.time[end].astype("datetime64[m]")) for end in (0, -1))
    facts = [("grid", f"{m.grid}: {m.n_buses:,} buses, {4 * m.n_buses:,} channels")]
    if store.has_grid:
        grid = store.grid
        text = _line_text(grid.circuit.n_branches, int(limits_of(grid).is_rated.sum()))
        facts += [
            ("", f"{len(grid.branch):,} branches, {len(grid.gen):,} generators"),
            ("lines", text),
        ]
    else:
        facts.append(("", "imported without a grid: no lines, no power flow"))
    minutes = f"{recipe.step_s / 60:g} min"
    findings = [finding for segment in recipe.segments for finding in segment.findings]
    imports = f"{len(recipe.segments)} import{'s' if len(recipe.segments) > 1 else ''}"
    return [
        *facts,
        ("record", f"{first} to {last} UTC, {m.n_steps:,} steps of {minutes}, {imports}"),
        ("kind", f"{recipe.kind}: {MEANINGS[recipe.kind]}"),
        ("given", ", ".join(recipe.given)),
        ("solved", ", ".join(recipe.solved) or "nothing"),
        ("found", "\n".join(findings) or "nothing to fill"),
        ("edition", m.edition),
        ("fingerprint", m.fingerprint),
        ("made with", ", ".join(f"{name} {version}" for name, version in m.made_with.items())),
        ("sources", "\n".join(m.attribution)),
    ]


def _residual_facts(certificate: Certificate) -> Facts:
    """The residuals of measured data: over all buses, and the buses where they are largest."""
    residuals = certificate.residuals
    if not residuals:
        return [
            ("balance", "not checked: no bus has P, Q, V and θ, and V and θ around it, observed")
        ]
    facts = []
    for unit, name in (("MW", "p_mw"), ("MVAr", "q_mvar")):
        levels = {
            level: sorted(getattr(residual, name)[level] for residual in residuals)
            for level in (0.5, 0.99, 1.0)
        }
        middle = len(residuals) // 2
        text = (
            f"median bus: median {levels[0.5][middle]:.2g}, 99% {levels[0.99][middle]:.2g}; "
            f"largest {levels[1.0][-1]:.2g} {unit}"
        )
        facts.append((f"{name[0].upper()} residual", text))
    worst = [
        f"bus {residual.bus}: P {residual.p_mw[1.0]:.2g} MW, Q {residual.q_mvar[1.0]:.2g} MVAr "
        f"(median {residual.p_mw[0.5]:.2g} and {residual.q_mvar[0.5]:.2g}), {residual.largest_time}"
        for residual in residuals[:SHOWN_BUSES]
    ]
    return [*facts, ("largest", "\n".join(worst))]


def _line_text(n_branches: int, n_rated: int) -> str:
    unrated = n_branches - n_rated
    return f"{n_branches:,} branches in service, {unrated:,} without a rating (flows, no loading)"


def _reactive_text(certificate: Certificate) -> str:
    """How often generators leave their reactive limits, which the data set does not enforce."""
    points, steps = certificate.outside_reactive
    if isnan(points):
        return "reactive limits not checked: no bus where the generators' Q is known"
    return (
        f"outside their reactive limits, which are not enforced, in {points:.1%} of the steps of "
        f"{certificate.generator_buses:,} PV buses without load; somewhere in {steps:.1%} of all "
        "steps"
    )


def certificate_facts(certificate: Certificate) -> Facts:
    """The results of a verification."""
    facts = [("bytes", "; ".join(certificate.damaged) or "all match the manifest")]
    if certificate.kind == "measured":
        return [*facts, *_measured_facts(certificate)]
    for name, unit, mismatch in (
        ("P", "MW", certificate.p_mw),
        ("Q", "MVAr", certificate.q_mvar),
    ):
        levels = ", ".join(f"{level:.1%} {x:.2g}" for level, x in mismatch.quantiles.items())
        text = f"at most {mismatch.largest:.2g} {unit}; worst bus of a step: {levels}"
        facts.append((f"{name} mismatch", text))
    share = f"{certificate.largest_share:.0%} of what float32 rounding can explain"
    if isnan(certificate.largest_share):
        share = "not checked"
    steps = certificate.inconsistent_steps
    counts = zip(PROVENANCE, certificate.provenance, strict=False)
    return [
        *facts,
        ("AC equations", share if not steps else f"VIOLATED in {len(steps)} steps: {steps[:5]}"),
        ("before rounding", f"at most {certificate.solver_mismatch_pu:.1e} p.u."),
        ("solved by", ", ".join(f"{name} {count:,}" for name, count in counts)),
        *_observed_facts(certificate),
        ("lines", _line_text(*certificate.branches)),
        ("generators", _reactive_text(certificate)),
        ("record", "complete" if certificate.complete else "UNFINISHED"),
        ("verdict", "valid" if certificate.valid else "NOT VALID"),
    ]


def _measured_facts(certificate: Certificate) -> Facts:
    """The results of a verification of measured data, about which rounding says nothing."""
    return [
        ("kind", f"measured: {MEANINGS['measured']}"),
        *_observed_facts(certificate),
        *_residual_facts(certificate),
        ("lines", _line_text(*certificate.branches)),
        ("record", "complete" if certificate.complete else "UNFINISHED"),
        ("verdict", "undamaged" if certificate.valid else "NOT VALID"),
    ]


def _observed_facts(certificate: Certificate) -> Facts:
    """How much of imported data is observed, unless all of it is."""
    if certificate.observed_share == 1:
        return []
    share = f"{certificate.observed_share:.2%} of the states; the others were filled"
    return [("observed", f"{share}, and are never scored")]
