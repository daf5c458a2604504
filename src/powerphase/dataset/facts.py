"""What there is to say about a data set and its certificate, line by line, for whoever shows it."""

from math import isnan

from powerphase.dataset.certificate import Certificate
from powerphase.dataset.store import Store
from powerphase.grid.rescue import PROVENANCE

Facts = list[tuple[str, str]]
"""Pairs of what is said and what is said of it."""


def store_facts(store: Store) -> Facts:
    """What a data set holds."""
    m, grid = store.manifest, store.grid
    days = f"{m.recipe['start']} to {m.recipe['end']}"
    done = "complete" if m.complete else f"UNFINISHED, {len(m.blocks)} of {m.n_blocks} blocks"
    options = {k: m.recipe[k] for k in ("seed", "dispatch", "setpoint")}
    solved = zip(PROVENANCE, m.provenance, strict=True)
    return [
        ("grid", f"{m.grid}: {m.n_buses:,} buses, {4 * m.n_buses:,} channels"),
        ("", f"{len(grid.branch):,} branches, {len(grid.gen):,} generators"),
        ("record", f"{days}, {m.n_steps:,} steps of 15 min, {done}"),
        ("signals", f"{m.edition} ({m.filled_signal_values:,} values filled)"),
        ("options", ", ".join(f"{k} {v}" for k, v in options.items())),
        ("solved by", ", ".join(f"{name} {count:,}" for name, count in solved if count)),
        ("fingerprint", m.fingerprint),
        ("made with", ", ".join(f"{k} {v}" for k, v in m.made_with.items())),
        ("sources", "\n".join(m.attribution)),
    ]


def certificate_facts(certificate: Certificate) -> Facts:
    """What verification found."""
    facts = [("bytes", "; ".join(certificate.damaged) or "all as the manifest says")]
    for name, unit, found in (("P", "MW", certificate.p_mw), ("Q", "MVAr", certificate.q_mvar)):
        levels = ", ".join(f"{level:.1%} {value:.2g}" for level, value in found.quantiles.items())
        text = f"at most {found.largest:.2g} {unit}; worst bus of a step: {levels}"
        facts.append((f"{name} mismatch", text))
    share = f"{certificate.largest_share:.0%} of what float32 rounding can explain"
    if isnan(certificate.largest_share):
        share = "not checked"
    bad = certificate.inconsistent_steps
    counts = zip(PROVENANCE, certificate.provenance, strict=True)
    return [
        *facts,
        ("AC equations", share if not bad else f"VIOLATED in {len(bad)} steps: {bad[:5]}"),
        ("before rounding", f"at most {certificate.solver_mismatch_pu:.1e} p.u."),
        ("solved by", ", ".join(f"{name} {count:,}" for name, count in counts)),
        ("record", "complete" if certificate.complete else "UNFINISHED"),
        ("verdict", "valid" if certificate.valid else "NOT VALID"),
    ]
