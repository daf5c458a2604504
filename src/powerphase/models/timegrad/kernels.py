"""Triton kernels of the noise network: inference, a residual block and gradients.

In the kernels of the loss, a program processes some tiles of columns, one after the other. A tile
lies within a row, so all its columns have one diffusion step, and nothing of another row is read.
Gradients of weights are summed over the tiles of a program; the sums of all programs are added
afterwards, in a fixed order.

Tensor cores multiply matrices of 16 rows, and a column has eight features. So a block's tile is two
or more groups of columns whose features are rows of one matrix; the weights form a block-diagonal
matrix with one block per group.
"""

from typing import no_type_check

from powerphase.models.framework.kernels import constexpr, jit, tanh, tl
from powerphase.models.timegrad.denoiser import NEGATIVE_SLOPE

LEAK = constexpr(NEGATIVE_SLOPE)
INV_SQRT2 = constexpr(0.7071067811865476)
"""Scale of a residual sum."""


@jit
@no_type_check
def _leaky_relu(values):
    return tl.where(values > 0, values, LEAK * values)


@jit
@no_type_check
def convolution_forward(
    features,
    weight,
    bias,
    outputs,
    n_columns,
    FACTOR: constexpr,
    N_IN: constexpr,
    N_OUT: constexpr,
    ROWS: constexpr,
    TAPS: constexpr,
    DILATION: constexpr,
    RECTIFY: constexpr,
    COLUMNS: constexpr,
):
    """Convolve some columns, with zero padding."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    feature_valid = row < N_OUT
    result = tl.load(bias + row, feature_valid, 0.0)[:, None] + tl.zeros(
        [ROWS, COLUMNS], bias.dtype.element_ty
    )
    for tap in tl.static_range(TAPS):
        tap_column = column + (tap - TAPS // 2) * DILATION
        valid = (tap_column >= 0) & (tap_column < n_columns)
        for k in tl.static_range(N_IN):
            factor = tl.load(weight + (row * N_IN + k) * TAPS + tap, feature_valid, 0.0)
            value = tl.load(features + k * n_columns + tap_column, valid, 0.0)
            result += factor[:, None] * (value * FACTOR)[None, :]
    if RECTIFY:
        result = _leaky_relu(result)
    address = row[:, None] * n_columns + column[None, :]
    tl.store(outputs + address, result, feature_valid[:, None] & (column < n_columns)[None, :])


@jit
@no_type_check
def _output_rows(gated, weight, bias, first, N: constexpr, ROWS: constexpr):
    """N rows of the output layer, from the first on, applied to gated features and rectified."""
    row, column = tl.arange(0, ROWS), tl.arange(0, ROWS)
    feature_valid = row < N
    matrix = tl.load(
        weight + (first + row[:, None]) * N + column[None, :],
        feature_valid[:, None] & (column < N)[None, :],
        0.0,
    )
    result = tl.sum(matrix[:, :, None] * gated[None, :, :], 1)
    return _leaky_relu(result + tl.load(bias + first + row, feature_valid, 0.0)[:, None])


@jit
@no_type_check
def block_inference(
    features,
    conditioner,
    embedding,
    skips,
    outputs,
    n_columns,
    mix_weight,
    mix_bias,
    condition_weight,
    condition_bias,
    output_weight,
    output_bias,
    N: constexpr,
    ROWS: constexpr,
    DILATION: constexpr,
    COLUMNS: constexpr,
):
    """Apply a block to some columns."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    feature_valid, column_valid = row < N, column < n_columns
    condition = tl.load(conditioner + column, column_valid, 0.0)[None, :]
    gate = tl.load(condition_weight + row, feature_valid, 0.0)[:, None] * condition
    content = tl.load(condition_weight + N + row, feature_valid, 0.0)[:, None] * condition
    gate += (
        tl.load(mix_bias + row, feature_valid, 0.0)
        + tl.load(condition_bias + row, feature_valid, 0.0)
    )[:, None]
    content += (
        tl.load(mix_bias + N + row, feature_valid, 0.0)
        + tl.load(condition_bias + N + row, feature_valid, 0.0)
    )[:, None]
    for tap in tl.static_range(3):
        tap_column = column + (tap - 1) * DILATION
        tap_valid = (tap_column >= 0) & (tap_column < n_columns)
        for k in tl.static_range(N):
            value = tl.load(features + k * n_columns + tap_column, tap_valid, 0.0) + tl.load(
                embedding + k
            )
            value = tl.where(tap_valid, value, 0.0)[None, :]
            gate += (
                tl.load(mix_weight + (row * N + k) * 3 + tap, feature_valid, 0.0)[:, None] * value
            )
            content += (
                tl.load(mix_weight + ((N + row) * N + k) * 3 + tap, feature_valid, 0.0)[:, None]
                * value
            )
    content_tanh, _ = tanh(content)
    gated = content_tanh / (1 + tl.exp(-gate))
    change = _output_rows(gated, output_weight, output_bias, 0, N, ROWS)
    skip = _output_rows(gated, output_weight, output_bias, N, N, ROWS)
    address = row[:, None] * n_columns + column[None, :]
    valid = feature_valid[:, None] & column_valid[None, :]
    tl.store(
        outputs + address,
        (tl.load(features + address, valid, 0.0) + change) * 0.7071067811865476,
        valid,
    )
    tl.store(skips + address, tl.load(skips + address, valid, 0.0) + skip, valid)


@jit
@no_type_check
def _tile_position(tile, n_rows, length, tiles, COLUMNS: constexpr):
    """Row of a tile, its start, the tile's positions in it, and which of these exist."""
    row = tile // tiles
    position = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    return row, row * length, position, (position < length) & (row < n_rows)


@jit
@no_type_check
def _load_shifted(values, row_start, position, in_row, length, n_columns, AHEAD: constexpr,
                  N: constexpr, TAPS: constexpr, PADDED: constexpr,
                  DILATION: constexpr):  # fmt: skip
    """Load N numbers of each tap's column, tap by tap, and the mask of those within the row."""
    source = tl.arange(0, PADDED)
    shift = (source // N - TAPS // 2) * DILATION * AHEAD
    shifted = position[None, :] + shift[:, None]
    valid = (source < TAPS * N)[:, None] & in_row[None, :] & (shifted >= 0) & (shifted < length)
    address = (source % N)[:, None] * n_columns + row_start + shifted
    return tl.load(values + address, valid, 0.0), valid


@jit
@no_type_check
def _load_inputs(features, embedding, row_start, position, exists, length, n_columns, N: constexpr,
                 GROUPS: constexpr, FAN: constexpr, DILATION: constexpr,
                 COLUMNS: constexpr):  # fmt: skip
    """Load the inputs of a column's convolution: features plus the step embedding."""
    source = tl.arange(0, GROUPS * FAN)
    tap, feature = source % FAN // N, source % FAN % N
    shifted = position[None, :] + (source // FAN * COLUMNS + (tap - 1) * DILATION)[:, None]
    valid = (tap < 3)[:, None] & exists & (shifted >= 0) & (shifted < length)
    value = tl.load(features + feature[:, None] * n_columns + row_start + shifted, valid, 0.0)
    return tl.where(valid, value + tl.load(embedding + feature, tap < 3, 0.0)[:, None], 0.0)


@jit
@no_type_check
def _tap_matrix(weight, first, N: constexpr, SPAN: constexpr, GROUPS: constexpr, FAN: constexpr):
    """N rows of a convolution, from the first on, as the matrix for `_load_inputs`."""
    lane, source = tl.arange(0, GROUPS * SPAN)[:, None], tl.arange(0, GROUPS * FAN)[None, :]
    tap, feature = source % FAN // N, source % FAN % N
    valid = (lane // SPAN == source // FAN) & (lane % SPAN < N) & (tap < 3)
    return tl.load(weight + ((first + lane % SPAN) * N + feature) * 3 + tap, valid, 0.0)


@jit
@no_type_check
def _pair_indices(N: constexpr, SPAN: constexpr, GROUPS: constexpr):
    """Index of each pair of lanes in a matrix of N rows, and the mask of existing pairs."""
    lane, source = tl.arange(0, GROUPS * SPAN)[:, None], tl.arange(0, GROUPS * SPAN)[None, :]
    valid = (lane // SPAN == source // SPAN) & (lane % SPAN < N) & (source % SPAN < N)
    return lane % SPAN * N + source % SPAN, valid


@jit
@no_type_check
def _column(vector, first, N: constexpr, SPAN: constexpr, GROUPS: constexpr):
    """Load N numbers, from the first on, as a column."""
    feature = tl.arange(0, GROUPS * SPAN) % SPAN
    return tl.load(vector + first + feature, feature < N, 0.0)[:, None]


@jit
@no_type_check
def _gate_weights(mix_weight, mix_bias, condition_weight, condition_bias, N: constexpr,
                    SPAN: constexpr, GROUPS: constexpr, FAN: constexpr):  # fmt: skip
    """Load the weights of gate and content: tap matrices, biases, weights of the conditioner."""
    gate_bias = _column(mix_bias, 0, N, SPAN, GROUPS)
    gate_bias += _column(condition_bias, 0, N, SPAN, GROUPS)
    content_bias = _column(mix_bias, N, N, SPAN, GROUPS)
    content_bias += _column(condition_bias, N, N, SPAN, GROUPS)
    return (
        _tap_matrix(mix_weight, 0, N, SPAN, GROUPS, FAN),
        _tap_matrix(mix_weight, N, N, SPAN, GROUPS, FAN),
        gate_bias,
        content_bias,
        _column(condition_weight, 0, N, SPAN, GROUPS),
        _column(condition_weight, N, N, SPAN, GROUPS),
    )


@jit
@no_type_check
def _output_weights(output_weight, output_bias, N: constexpr, SPAN: constexpr, GROUPS: constexpr):
    """Load the weights of a block's change and skip output: matrices, biases."""
    pair_index, pair_valid = _pair_indices(N, SPAN, GROUPS)
    to_change = tl.load(output_weight + pair_index, pair_valid, 0.0)
    to_skip = tl.load(output_weight + N * N + pair_index, pair_valid, 0.0)
    change_bias = _column(output_bias, 0, N, SPAN, GROUPS)
    return to_change, to_skip, change_bias, _column(output_bias, N, N, SPAN, GROUPS)


@jit
@no_type_check
def _leaky_relu_gradient(values, inputs):
    """Values times the derivative of a leaky ReLU at these inputs, or at its outputs."""
    return tl.where(inputs > 0, values, LEAK * values)


@jit
@no_type_check
def block_forward(
    features, conditioner, embedding, embedding_row, skips, outputs,
    n_rows, length, tiles, TILES: constexpr,
    mix_weight, mix_bias, condition_weight, condition_bias, output_weight, output_bias,
    N: constexpr, SPAN: constexpr, GROUPS: constexpr, FAN: constexpr, DILATION: constexpr,
    FIRST: constexpr, LAST: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """Compute the features after a block, unless it is the last, and add its skip output."""
    LANES: constexpr = GROUPS * SPAN
    group, feature = tl.arange(0, LANES) // SPAN, tl.arange(0, LANES) % SPAN
    n_columns = n_rows * length
    gate_taps, content_taps, gate_bias, content_bias, gate_condition, content_condition = (
        _gate_weights(mix_weight, mix_bias, condition_weight, condition_bias, N, SPAN, GROUPS, FAN)
    )  # fmt: skip
    to_change, to_skip, change_bias, skip_bias = _output_weights(
        output_weight, output_bias, N, SPAN, GROUPS
    )
    for index in range(TILES):
        tile = tl.program_id(0) * TILES + index
        row, exists = tile // tiles, tile // tiles < n_rows
        row_start, position = row * length, tile % tiles * GROUPS * COLUMNS + tl.arange(0, COLUMNS)
        row_embedding = embedding + tl.where(exists, row, 0) * embedding_row
        inputs = _load_inputs(features, row_embedding, row_start, position, exists, length,
                              n_columns, N, GROUPS, FAN, DILATION, COLUMNS)  # fmt: skip
        column = position[None, :] + group[:, None] * COLUMNS
        column_valid = (column < length) & exists
        address = feature[:, None] * n_columns + row_start + column
        valid = (feature < N)[:, None] & column_valid
        condition = tl.load(conditioner + row_start + column, column_valid, 0.0)
        gate = tl.dot(gate_taps, inputs, input_precision=PRECISION)
        content = tl.dot(content_taps, inputs, input_precision=PRECISION)
        content_tanh, _ = tanh(content + content_bias + content_condition * condition)
        gated = content_tanh / (1 + tl.exp(-(gate + gate_bias + gate_condition * condition)))
        skip = tl.dot(to_skip, gated, input_precision=PRECISION) + skip_bias
        skip = _leaky_relu(skip)
        if not FIRST:
            skip += tl.load(skips + address, valid, 0.0)
        tl.store(skips + address, skip, valid)
        if not LAST:
            change = tl.dot(to_change, gated, input_precision=PRECISION) + change_bias
            change = _leaky_relu(change)
            tl.store(
                outputs + address,
                (tl.load(features + address, valid, 0.0) + change) * INV_SQRT2,
                valid,
            )


@jit
@no_type_check
def block_backward(
    features, conditioner, embedding, embedding_row, grad_outputs, grad_skips, grad_mixed,
    grad_conditioner, grad_output_weight, grad_condition_weight, partial_row,
    n_rows, length, tiles, TILES: constexpr,
    mix_weight, mix_bias, condition_weight, condition_bias, output_weight, output_bias,
    N: constexpr, SPAN: constexpr, GROUPS: constexpr, FAN: constexpr, DILATION: constexpr,
    LAST: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """Gradients of a block except its convolution.

    `convolution_backward` computes those from the gradients of the convolution's outputs,
    `grad_mixed`.
    """
    LANES: constexpr = GROUPS * SPAN
    group, feature = tl.arange(0, LANES) // SPAN, tl.arange(0, LANES) % SPAN
    n_columns = n_rows * length
    gate_taps, content_taps, gate_bias, content_bias, gate_condition, content_condition = (
        _gate_weights(mix_weight, mix_bias, condition_weight, condition_bias, N, SPAN, GROUPS, FAN)
    )  # fmt: skip
    to_change, to_skip, change_bias, skip_bias = _output_weights(
        output_weight, output_bias, N, SPAN, GROUPS
    )
    pair_index, pair_valid = _pair_indices(N, SPAN, GROUPS)
    dtype: constexpr = features.dtype.element_ty
    change_sum, skip_sum = tl.zeros([LANES, LANES], dtype), tl.zeros([LANES, LANES], dtype)
    change_all, skip_all = tl.zeros([LANES, COLUMNS], dtype), tl.zeros([LANES, COLUMNS], dtype)
    gate_all, content_all = tl.zeros([LANES, COLUMNS], dtype), tl.zeros([LANES, COLUMNS], dtype)
    for index in range(TILES):
        tile = tl.program_id(0) * TILES + index
        row, exists = tile // tiles, tile // tiles < n_rows
        row_start, position = row * length, tile % tiles * GROUPS * COLUMNS + tl.arange(0, COLUMNS)
        row_embedding = embedding + tl.where(exists, row, 0) * embedding_row
        inputs = _load_inputs(features, row_embedding, row_start, position, exists, length,
                              n_columns, N, GROUPS, FAN, DILATION, COLUMNS)  # fmt: skip
        column = position[None, :] + group[:, None] * COLUMNS
        column_valid = (column < length) & exists
        address = feature[:, None] * n_columns + row_start + column
        valid = (feature < N)[:, None] & column_valid
        condition = tl.load(conditioner + row_start + column, column_valid, 0.0)
        gate = tl.dot(gate_taps, inputs, input_precision=PRECISION)
        content = tl.dot(content_taps, inputs, input_precision=PRECISION)
        content_tanh, derivative = tanh(content + content_bias + content_condition * condition)
        gate_sigmoid = 1 / (1 + tl.exp(-(gate + gate_bias + gate_condition * condition)))
        gated = content_tanh * gate_sigmoid
        skip = tl.dot(to_skip, gated, input_precision=PRECISION) + skip_bias
        grad_skip = _leaky_relu_gradient(tl.load(grad_skips + address, valid, 0.0), skip)
        grad_gated = tl.dot(tl.trans(to_skip), grad_skip, input_precision=PRECISION)
        skip_all += grad_skip
        if not LAST:
            change = tl.dot(to_change, gated, input_precision=PRECISION) + change_bias
            grad_change = _leaky_relu_gradient(
                tl.load(grad_outputs + address, valid, 0.0) * INV_SQRT2, change
            )
            grad_gated += tl.dot(tl.trans(to_change), grad_change, input_precision=PRECISION)
            change_all += grad_change
        # A branch, because without it Triton would partition all these products among warps alike.
        if exists:
            skip_sum += tl.dot(grad_skip, tl.trans(gated), input_precision=PRECISION)
            if not LAST:
                change_sum += tl.dot(grad_change, tl.trans(gated), input_precision=PRECISION)
        grad_content = grad_gated * gate_sigmoid * derivative
        grad_gate = grad_gated * gated * (1 - gate_sigmoid)
        tl.store(grad_mixed + address, grad_gate, valid)
        tl.store(grad_mixed + N * n_columns + address, grad_content, valid)
        gate_all += grad_gate * condition
        content_all += grad_content * condition
        grad_condition_terms = grad_gate * gate_condition + grad_content * content_condition
        for k in tl.static_range(GROUPS):
            grad_condition = tl.sum(tl.where(group[:, None] == k, grad_condition_terms, 0.0), 0)
            group_column = position + k * COLUMNS
            group_valid = exists & (group_column < length)
            if not LAST:
                grad_condition += tl.load(
                    grad_conditioner + row_start + group_column, group_valid, 0.0
                )
            tl.store(grad_conditioner + row_start + group_column, grad_condition, group_valid)
    part, feature_valid = (tl.program_id(0) * GROUPS + group) * partial_row, feature < N
    tl.store(grad_output_weight + part[:, None] + pair_index, change_sum, pair_valid)
    tl.store(grad_output_weight + part[:, None] + N * N + pair_index, skip_sum, pair_valid)
    tl.store(grad_output_weight + part + 2 * N * N + feature, tl.sum(change_all, 1), feature_valid)
    tl.store(
        grad_output_weight + part + 2 * N * N + N + feature, tl.sum(skip_all, 1), feature_valid
    )
    tl.store(grad_condition_weight + part + feature, tl.sum(gate_all, 1), feature_valid)
    tl.store(grad_condition_weight + part + N + feature, tl.sum(content_all, 1), feature_valid)


@jit
@no_type_check
def convolution_backward(
    upstream, features, embedding, embedding_row, grad_features, grad_embedding,
    grad_embedding_tile, grad_parameters, partial_row,
    n_rows, length, tiles, TILES: constexpr, weight,
    FACTOR: constexpr, N_IN: constexpr, N_OUT: constexpr, INS: constexpr, OUTS: constexpr,
    WIDE: constexpr, TAPS: constexpr, DILATION: constexpr, EMBEDDED: constexpr, RESIDUAL: constexpr,
    RECTIFIED: constexpr, NEEDED: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """Gradients of a convolution's features, weight and bias from those of its outputs.

    Its inputs were the features times FACTOR, plus the step embedding of the row if EMBEDDED. If
    RESIDUAL, the features were also used in a residual sum, and `grad_features` holds √2 times the
    gradient of that use. If RECTIFIED, the features came from a leaky ReLU, whose derivative is
    applied too. Unless NEEDED, only the gradients of weight and bias are computed.
    """
    n_columns = n_rows * length
    lane, source = tl.arange(0, INS), tl.arange(0, OUTS)
    lane_valid, source_valid = lane < N_IN, source < TAPS * N_OUT
    weight_at = ((source % N_OUT)[None, :] * N_IN + lane[:, None]) * TAPS
    weight_at = weight_at + (source // N_OUT)[None, :]
    weight_valid = lane_valid[:, None] & source_valid[None, :]
    matrix = tl.load(weight + weight_at, weight_valid, 0.0)
    dtype: constexpr = features.dtype.element_ty
    total, sums = tl.zeros([WIDE, COLUMNS], dtype), tl.zeros([INS, OUTS], dtype)
    output = tl.arange(0, WIDE)
    for index in range(TILES):
        tile = tl.program_id(0) * TILES + index
        row, row_start, position, column_valid = _tile_position(
            tile, n_rows, length, tiles, COLUMNS
        )
        gradients, _ = _load_shifted(
            upstream, row_start, position, column_valid, length, n_columns, -1, N_OUT, TAPS, OUTS,
            DILATION,
        )  # fmt: skip
        address = lane[:, None] * n_columns + row_start + position[None, :]
        valid = lane_valid[:, None] & column_valid[None, :]
        value = tl.load(features + address, valid, 0.0)
        inputs = value * FACTOR
        if EMBEDDED:
            step_embedding = tl.load(
                embedding + row * embedding_row + lane, lane_valid & (row < n_rows), 0.0
            )
            inputs = tl.where(valid, inputs + step_embedding[:, None], 0.0)
        output_at = output[:, None] * n_columns + row_start + position[None, :]
        output_valid = (output < N_OUT)[:, None] & column_valid[None, :]
        total += tl.load(upstream + output_at, output_valid, 0.0)
        sums += tl.dot(inputs, tl.trans(gradients), input_precision=PRECISION)
        if NEEDED:
            result = tl.dot(matrix, gradients, input_precision=PRECISION) * FACTOR
            if EMBEDDED:
                tile_sum = tl.sum(tl.where(valid, result, 0.0), 1)
                tile_address = grad_embedding + tile * grad_embedding_tile + lane
                tl.store(tile_address, tile_sum, lane_valid & (row < n_rows))
            if RESIDUAL:
                result += tl.load(grad_features + address, valid, 0.0) * INV_SQRT2
            if RECTIFIED:
                result = _leaky_relu_gradient(result, value)
            tl.store(grad_features + address, result, valid)
    partial = grad_parameters + tl.program_id(0) * partial_row
    tl.store(partial + weight_at, sums, weight_valid)
    tl.store(partial + TAPS * N_IN * N_OUT + output, tl.sum(total, 1), output < N_OUT)
