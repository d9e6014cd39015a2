"""What profile_step.py reads from a profile, and the floor it compares with."""

import pytest
import torch
from scripts import benchmark

from covprop.bench.layers import count_flops
from covprop.bench.step import training_step
from covprop.bench.subject import Subject
from covprop.bench.timing import Timing

step_floor, kernels = benchmark("step_floor"), benchmark("step_kernels")
TINY = Subject("lenet", width=2, image=8, channels=1)
SMALL = Subject("preact_resnet18", width=16, image=8)


def test_kernels_fall_into_groups() -> None:
    names = {
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc": "convolution",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "matrix product",
        "triton_poi_fused_convolution_relu_3": "compiled pointwise",
        "triton_red_fused_sum_7": "compiled reduction",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>": (
            "copy or cast"
        ),
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>": "reduction",
        "Memcpy DtoD (Device -> Device)": "copy or cast",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel": "optimizer",
        "void cudnn::bn_fw_tr_1C11_kernel_NHWC": "norm",
        "aten::mm": "matrix product",
        "_backward": "moment-ReLU",
        "_sum_parts": "moment-ReLU",
        "something new": "other",
    }
    assert {name: kernels.Kernel(name, 1.0, 1.0).group for name in names} == names


def test_overlapping_kernels_count_once() -> None:
    spans = [(0, 10), (2, 3), (5, 10), (20, 5)]
    assert kernels.busy_time([{"ts": start, "dur": length} for start, length in spans]) == 15 + 5


def test_operators_of_some_work_on_the_cpu() -> None:
    a = torch.ones(64, 64)
    found, busy = kernels.kernels_of(lambda: torch.mm(a, a), cuda=False, calls=3)
    (product,) = [kernel for kernel in found if kernel.name == "aten::mm"]
    assert product.launches == 1
    assert 0 < product.seconds <= busy


def test_seconds_are_those_of_one_call() -> None:
    a = torch.ones(512, 512)

    def product(calls: int) -> float:
        found, _ = kernels.kernels_of(lambda: torch.mm(a, a), cuda=False, calls=calls)
        return sum(kernel.seconds for kernel in found if kernel.name == "aten::mm")

    assert product(40) < 10 * product(1)


def test_products_and_floor_count_the_same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_second(sides: dict[str, object], *_: object) -> dict[str, Timing]:
        return dict.fromkeys(sides, Timing(2.0, 1.0, 3.0, 1, 1))

    monkeypatch.setattr(step_floor, "interleaved", in_a_second)
    table = kernels.sigma_products(SMALL)
    limits = step_floor.floor(SMALL, 4)
    total = table.rows[-1]
    assert total[0] == "all"
    assert float(total[3]) > 0.01
    assert float(total[3]) == round(limits["Σ pass, forward and backward, GFLOP"], 3)
    assert all(value > 0 for value in limits.values())
    network = count_flops(training_step("plain", SMALL, 4))
    assert limits["network, forward and backward, GFLOP"] == pytest.approx(network / 1e9)
    assert limits["network at the first rate, ms"] == pytest.approx(1e3 * network / (2 * 1024**3))
    assert limits["copy, GB/s (read and written)"] == pytest.approx(2 * 2 * 2**22 / 1e9)


def test_map_numbers_of_lenet() -> None:
    relu, maps = step_floor.map_numbers(TINY)
    assert 0 < relu < maps
