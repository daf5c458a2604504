"""Products that keep all digits."""

import pytest
import torch

from powerphase.models.framework.ops import exact_matmul


def test_products_are_exact_only_where_they_have_to_be() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            one = torch.ones(2, 2)
            with exact_matmul():
                assert torch.get_float32_matmul_precision() == "highest"
                assert (one @ one).dtype == torch.float32
            assert (one @ one).dtype == torch.bfloat16
        with pytest.raises(ZeroDivisionError), exact_matmul():
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
