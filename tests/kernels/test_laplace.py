"""Local sums, whatever the way they are summed."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.errors import MissingPackageError, TrueupError, TrueupWarning
from trueup.kernels import laplace
from trueup.kernels.laplace import EXACT, MIN_SHARE, Sources, cuda, halves, sums, tiles
from trueup.metrics import lce, lce_curve, local_errors, mean_lce, mlce

CLOSE = 1e-6  # the promise: of the sum of the sizes of all terms


def plain(points, columns, bins, scales, at=None, own=True):
    """The definition, with distances counted from the nearest row; and the same of the sizes of the columns."""
    asked, places = (points, bins) if at is None else at
    shape = (len(scales), len(asked), columns.shape[1])
    total, size, shift = np.zeros(shape), np.zeros(shape), np.zeros(shape[:2])
    for t, (x, b) in enumerate(zip(asked, places, strict=True)):
        rows = np.flatnonzero(bins == b)
        rows = rows if own or at is not None else rows[rows != t]
        if len(rows):
            far = np.abs(points[rows] - x).sum(axis=1)
            shift[:, t] = far.min()
            near = np.exp(-np.multiply.outer(scales, far - far.min()))
            total[:, t], size[:, t] = near @ columns[rows], near @ np.abs(columns[rows])
    return total, size, shift


def agree(points, columns, bins, scales, at=None, own=True, **options):
    """Hold what is found against the definition: ratios, and the logarithm of the sum of the weights."""
    found = sums(points, columns, bins, scales, at=at, own=own, **options)
    total, size, shift = plain(points, columns, bins, scales, at, own)
    assert (found.total[..., 0] > 0).tolist() == (total[..., 0] > 0).tolist()
    some = total[..., 0] > 0
    ratio, exact = (array[some] / array[some][:, :1] for array in (found.total, total))
    room = size[some] / size[some][:, :1]
    assert (np.abs(ratio - exact) <= CLOSE * room + 1e-300).all()
    for log, scale, g in ((some[g], scales[g], g) for g in range(len(scales))):
        here = np.log(found.total[g, log, 0]) - scale * found.shift[g, log]
        there = np.log(total[g, log, 0]) - scale * shift[g, log]
        assert np.allclose(here, there, rtol=1e-9, atol=CLOSE)
    return found


def rows(seed, n, d, c=2, kind="smooth", bins=1):
    random = np.random.default_rng(seed)
    points = random.normal(size=(n, d))
    if kind == "discrete":
        points = random.integers(0, 3, (n, d)).astype(float)
        points[:, 0] = -0.0
    elif kind == "distant":
        points = 1e5 + 1e3 * points
    weight = random.choice([0.5, 1.0, 2.0], n)
    columns = np.column_stack([weight, *(weight * random.uniform(-1, 1, n) for _ in range(c - 1))])
    return points, columns, random.integers(0, bins, n)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 200), d=st.integers(1, 64), c=st.integers(1, 3),
    kind=st.sampled_from(["smooth", "discrete", "distant"]), bins=st.integers(1, 5),
    gammas=st.lists(st.floats(-6, 4), min_size=1, max_size=3), own=st.booleans(),
)  # fmt: skip
def test_sums_are_those_of_the_definition(seed, n, d, c, kind, bins, gammas, own):
    points, columns, number = rows(seed, n, d, c, kind, bins)
    scales = np.array([0.0, *(1 / (d * 10.0**gamma) for gamma in gammas)])
    agree(points, columns, number, scales, own=own)
    other, _, places = rows(seed + 1, n // 3 + 1, d, c, kind, bins + 1)
    agree(points, columns, number, scales, (other, places))


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_very_small_and_large_scales(scale, d):
    points, columns, number = rows(1, 150, d, kind="discrete", bins=2)
    for own in (True, False):
        agree(points, columns, number, np.array([scale]), own=own)
    agree(points, columns, number, np.array([scale]), (points[:9] + 0.3, number[:9]))


def test_a_single_row_that_does_not_count_for_itself_has_no_sum():
    found = sums(np.ones((3, 2)), np.ones((3, 1)), np.array([0, 0, 1]), np.array([1.0]), own=False)
    assert found.total[0, :, 0].tolist() == [1, 1, 0]


def test_the_nearest_row_dominates_if_all_are_far():
    points = np.array([[0.0, 0, 0, 0], [1e6, 0, 0, 0]])
    columns = np.array([[1.0, 0.25], [1.0, 0.75]])
    at = np.array([[-9e5, 0, 0, 0], [2e6, 3e6, 0, 0], [5e5, 0, 0, 0]]), np.zeros(3, np.int64)
    found = sums(points, columns, np.zeros(2, np.int64), np.array([1.0]), at=at)
    assert (found.total[0, :, 1] / found.total[0, :, 0]).tolist() == [0.25, 0.75, 0.5]
    assert found.shift[0].tolist() == [9e5, 4e6, 5e5]


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_bins_with_many_rows_are_summed_by_the_fast_methods(d, monkeypatch):
    monkeypatch.setattr(laplace, "MIN_SWEPT_ROWS", (0, 1, 100, 100))
    points, columns, number = rows(4, 700, d, bins=2)
    scales = np.array([1 / d, 20 / d, 1e5])
    for own in (True, False):
        agree(points, columns, number, scales, own=own)
    agree(points, columns, number, scales, (1.5 * points[:100], number[:100]))


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_the_sums_of_a_point_do_not_depend_on_other_points(d, monkeypatch):
    monkeypatch.setattr(laplace, "MIN_SWEPT_ROWS", (0, 1, 100, 100))
    points, columns, number = rows(2, 600, d, bins=2)
    targets, _, places = rows(3, 90, d, bins=3)
    scales = np.array([0.0, 1 / d, 1e4])
    whole = sums(points, columns, number, scales, at=(3 * targets, places))
    for size in (1, 7):
        for start in range(0, 90, size):
            part = slice(start, start + size)
            found = sums(points, columns, number, scales, at=(3 * targets[part], places[part]))
            assert (found.total == whole.total[:, part]).all()
            assert (found.shift == whole.shift[:, part]).all()


@pytest.mark.parametrize("d", [1, 2, 3, 20])
def test_the_number_of_threads_changes_no_bit(d, monkeypatch):
    monkeypatch.setattr(laplace, "MIN_SWEPT_ROWS", (0, 1, 100, 100))
    points, columns, number = rows(5, 900, d, bins=3)
    one, many = (sums(points, columns, number, np.array([1 / d]), own=False, threads=t) for t in (1, 4))
    assert (one.total == many.total).all()
    assert (one.shift == many.shift).all()


def test_inputs_are_not_modified():
    points, columns, number = rows(6, 80, 4)
    before = points.copy(), columns.copy(), number.copy()
    sums(points, columns, number, np.array([1.0]), at=(points, number))
    sums(points, columns, number, np.array([1.0]))
    assert all((a == b).all() for a, b in zip(before, (points, columns, number), strict=True))


def test_no_rows_and_no_points_have_no_sums():
    points, columns, number = rows(6, 5, 3)
    assert sums(points[:0], columns[:0], number[:0], np.ones(2)).total.shape == (2, 0, 2)
    assert sums(points, columns, number, np.ones(2), at=(points[:0], number[:0])).total.shape == (2, 0, 2)
    assert sums(points[:0], columns[:0], number[:0], np.ones(1), at=(points, number)).total.tolist() == [[[0, 0]] * 5]


def test_distant_blocks_are_skipped_within_the_tolerance():
    random = np.random.default_rng(8)
    points = random.normal(size=(3000, 4)) + 8 * random.integers(0, 6, (3000, 1))
    columns = np.column_stack([np.ones(3000), random.uniform(-1, 1, 3000)])
    number, scale = np.zeros(3000, np.int64), np.array([1.0])
    exact, near = (sums(points, columns, number, scale, tolerance=t).total[0] for t in (EXACT, 1e-3))
    error = np.abs(near[:, 1] / near[:, 0] - exact[:, 1] / exact[:, 0])
    assert 0 < error.max() <= 1e-3  # some blocks were left out, and none that mattered


def test_distances_are_integers_only_if_steps_are_fine():
    points = np.random.default_rng(0).normal(size=(500, 50))
    assert tiles.fine_enough(np.ptp(points, axis=0), 1 / (50 * 0.4))
    assert not tiles.fine_enough(np.ptp(points, axis=0), 1 / (50 * 0.004))
    points[0, 0] = 1e6
    assert not tiles.fine_enough(np.ptp(points, axis=0), 1 / (50 * 0.4))
    assert cuda.rounding(points - points.mean(axis=0), 1 / (50 * 1e-6)) > cuda.ROUGH


def test_every_pair_of_blocks_is_met_once():
    points, _, number = rows(9, 1000, 3, bins=4)
    order = np.argsort(number, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(number)))
    blocks = tiles.Blocks(points[order], np.ones((1000, 1)), starts)
    assert sorted(blocks.order[blocks.real].tolist()) == list(range(1000))
    for parts in (1, 3, 50):
        met = [
            (a, b) for share in tiles._shares(blocks.firsts, parts) for a, stop in share.tolist() for b in range(a, stop)
        ]
        wanted = [
            (a, b) for k in range(4) for a in range(*blocks.firsts[k : k + 2]) for b in range(a, blocks.firsts[k + 1])
        ]
        assert sorted(met) == sorted(wanted)


NUMPY = halves.ArrayTools(np, lambda keys: np.argsort(keys, kind="stable"), np.repeat)


def in_tiles(points, columns, starts, targets, target_starts, scales, packed=False):
    """What tiles.cu does, in NumPy: the same words and tasks, float32 where it has float32."""
    rows = halves.pad(np.diff(starts), 128, NUMPY)
    among = targets is None
    asked = rows if among else halves.pad(np.diff(target_starts), 128, NUMPY)
    grid = (cuda.packed_grid if packed else cuda.float_grid)(points, np)
    (X, x), (Y, y) = (grid.words(part, np) for part in (points[rows.index], (points if among else targets)[asked.index]))
    C = (columns[rows.index] * rows.real[:, None]).astype(np.float32)
    out = np.zeros((len(scales), len(Y), columns.shape[1]))
    for one, first, last in halves.plan(rows.firsts, None if among else asked.firsts, 2, NUMPY).tolist():
        i = slice(128 * one, 128 * one + 128)
        for other in range(first, last):
            j = slice(128 * other, 128 * other + 128)
            far = -(y[i] + x[j].T) if packed else np.zeros((128, 128), np.float32)
            for k in range(X.shape[1]):
                a, b = Y[i, k][:, None], X[j, k]
                if packed:
                    low, high = (
                        np.maximum(a.view(np.uint32) >> s & 65535, b.view(np.uint32) >> s & 65535) for s in (0, 16)
                    )
                    far += 2 * (low + high).astype(np.int32)
                else:
                    far += np.abs(a.view(np.float32) - b.view(np.float32))
            assert (far < 2**23).all()
            for g, scale in enumerate(scales):
                near = np.exp2(-far.astype(np.float32) * np.float32(scale * math.log2(math.e) / grid.unit))
                if among and one == other:
                    np.fill_diagonal(near, 0)
                out[g, i] += near @ C[j]
                if among and one != other:
                    out[g, j] += near.T @ C[i]
    total = np.empty((len(scales), len(points if among else targets), columns.shape[1]))
    total[:, asked.index[asked.real]] = out[:, asked.real]
    return total


@pytest.mark.parametrize("d", [3, 50])
def test_gpu_tiles_are_accurate_in_float32(d):
    points, columns, number = rows(10, 700, d, bins=3)
    order = np.argsort(number, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(number)))
    points, columns, number = points[order], columns[order], number[order]
    coarse = max(
        scale for scale in np.geomspace(1e-3, 1e3, 200) if cuda.rounding(points - points.mean(axis=0), scale) <= cuda.FINE
    )
    assert coarse > 1 / (d * 0.4)
    scales = np.array([coarse, 1 / (d * 0.4)])
    found = in_tiles(points, columns, starts, None, None, scales)
    total, size, shift = plain(points, columns, number, scales, own=False)
    back = np.exp(-scales[:, None] * shift)[..., None]
    large = back[..., :1] * total[..., :1] > MIN_SHARE["cuda"]  # smaller sums are summed again on the CPU
    assert large.mean() > 0.9
    assert (np.abs(found - total * back) <= CLOSE * size * back)[np.broadcast_to(large, total.shape)].all()
    targets, _, places = rows(11, 300, d, bins=3)
    targets, places = targets[np.argsort(places)], np.sort(places)
    found = in_tiles(points, columns, starts, targets, np.append(0, np.cumsum(np.bincount(places))), scales)
    total, size, shift = plain(points, columns, number, scales, at=(targets, places))
    back = np.exp(-scales[:, None] * shift)[..., None]
    large = back[..., :1] * total[..., :1] > MIN_SHARE["cuda"]  # smaller sums are summed again on the CPU
    assert large.mean() > 0.9
    assert (np.abs(found - total * back) <= CLOSE * size * back)[np.broadcast_to(large, total.shape)].all()


@pytest.mark.parametrize("d", [5, 50, 200])
def test_packed_gpu_tiles_have_the_error_of_rounding_to_16_bits(d):
    points, columns, _ = rows(10, 300, d)
    scales = np.array([1 / (d * 0.4)])
    total, size, shift = plain(points, columns, np.zeros(300, np.int64), scales, own=False)
    found = in_tiles(points, columns, np.array([0, 300]), None, None, scales, packed=True)
    step = 1 / cuda.packed_grid(points, np).unit
    assert step == pytest.approx(max(np.ptp(points, axis=0).max() / 65535, np.ptp(points, axis=0).sum() / (2**22 - 1 - d)))
    room = 6 * scales[0] * step * math.sqrt(d / 6) * size  # six standard deviations of the rounding of a distance
    assert (np.abs(found * np.exp(scales[0] * shift)[..., None] - total) <= room).all()
    assert cuda.packed_grid(points[:1], np).unit == 0.0


def test_automatic_device(monkeypatch):
    points, columns, number = rows(12, 300, 4)
    monkeypatch.setattr(laplace, "find_spec", lambda name: name)
    monkeypatch.setattr(cuda, "available", lambda *, required: not required)

    def chosen(scales=(1.0,)):
        return laplace.choose_device("auto", points, number, number, np.array(scales))

    assert chosen() == "cpu"
    for name in ("MIN_STEPS", "MIN_STEPS_TO_IMPORT"):
        monkeypatch.setattr(laplace, name, 300 * 300 * 4 * 1.5)
    assert (chosen(), chosen((0.0, 1.0)), chosen((1.0, 2.0))) == ("cpu", "cpu", "cuda")
    monkeypatch.setattr(laplace, "MIN_SWEPT_ROWS", (0, 1, 1, 1, 1))  # far less work
    monkeypatch.setattr(laplace, "SWEPT_STEPS", 1)
    assert chosen((1.0, 2.0)) == "cpu"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", None)
    given = points, columns, number, np.array([1.0])
    assert (sums(*given, device="auto").total == sums(*given).total).all()  # without importing torch


def test_requesting_a_missing_gpu_warns(monkeypatch):
    points, columns, number = rows(12, 30, 4)
    given = points, columns, number, np.array([1.0])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match="torch") as error:
        sums(*given, device="cuda")
    assert "trueup[gpu]" in str(error.value)

    class Torch:
        class cuda:  # noqa: N801
            is_available = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "torch", Torch)
    with pytest.warns(TrueupWarning, match="torch finds no GPU"):
        found = sums(*given, device="cuda")
    assert (found.total == sums(*given).total).all()
    for measure in (lce, mlce, mean_lce, local_errors, lce_curve):
        options = {} if measure is lce_curve else {"gamma": 1.0}
        with pytest.warns(TrueupWarning) as warnings:
            measure(points, np.full(30, 0.5), np.ones(30), device="cuda", **options)
        assert warnings[0].filename == __file__  # the caller


def test_the_gpu_agrees_with_the_cpu():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'trueup[gpu]'")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    for d in (2, 50, 200):
        points, columns, number = rows(13, 1500, d, bins=4)
        scales = np.array([0.0, 1 / (d * 0.4), 1 / d])
        for own in (True, False):
            agree(points, columns, number, scales, own=own, device="cuda")
        agree(points, columns, number, scales, (points[:99] + 0.1, number[:99]), device="cuda")
    for d in (1, 2, 3, 20):  # by halves, and packed
        points, columns, number = rows(14, 120_000, d, bins=2)
        scales = np.array([1 / (d * 0.4), 3 / d])
        at = np.arange(0, 120_000, 3_000)
        for own in (True, False):
            found = sums(points, columns, number, scales, own=own, device="cuda").total[:, at]
            for k, t in enumerate(at):
                near = np.exp(-np.multiply.outer(scales, np.abs(points - points[t]).sum(axis=1))) * (number == number[t])
                near[:, t] *= own
                assert (np.abs(found[:, k] - near @ columns) <= 1e-4 * near @ np.abs(columns)).all()
                assert np.allclose(
                    found[:, k, 1] / found[:, k, 0], near @ columns[:, 1] / (near @ columns[:, 0]), atol=CLOSE
                )
        at = points[:2_000] + 0.01, number[:2_000]
        found, exact = (sums(points, columns, number, scales, at=at, device=device).total for device in ("cuda", "cpu"))
        assert np.allclose(found[..., 1] / found[..., 0], exact[..., 1] / exact[..., 0], atol=CLOSE)


@pytest.mark.parametrize("d", [1, 3, 9])
def test_sources_give_the_sums_of_rows_passed_each_time(d):
    points, columns, number = rows(14, 400, d, bins=3)
    targets, _, places = rows(15, 60, d, bins=5)  # bins that no row has
    kept, scales = Sources(points, columns, number), np.array([0.0, 2 / d, 1e6])
    for _ in range(2):
        assert (
            kept.at(targets, places, scales).total == sums(points, columns, number, scales, at=(targets, places)).total
        ).all()
    assert kept.at(targets[:0], places[:0], scales).total.shape == (3, 0, 2)


def test_coarse_steps_are_detected_for_large_units():
    # An outlier a million times farther than the rest, measured in units of a hundred millionth.
    points, columns, number = rows(16, 300, 5)
    points *= 1e8
    points[0] = 1e15
    assert not tiles.fine_enough(np.ptp(points, axis=0), 1 / (5 * 1e8))
    for own in (True, False):
        agree(points, columns, number, np.array([1 / (5 * 1e8)]), own=own)
    agree(points, columns, number, np.array([1 / (5 * 1e8)]), (points[1:50] * 1.1, number[1:50]))


@pytest.mark.parametrize("scale", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("d", [1, 4])
def test_small_weights_are_not_lost_beside_a_large_one(d, scale):
    points = np.array([[0.0] * d, [0.0] * d, [1.0] * d, [1.0] * d, [2.0] * d])
    columns = np.array([[1e20, 1e20], [1.0, -1.0], [2.0, 1.0], [1e-3, 0.0], [1e-20, 1e-20]])
    agree(points, columns, np.zeros(5, np.int64), np.array([scale]), own=False)
    # And where nobody is on the same spot.
    agree(points[[0, 2, 4]], columns[[0, 2, 4]], np.zeros(3, np.int64), np.array([scale]), own=False)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("gamma", [0.02, 0.3])
def test_weights_of_all_magnitudes_are_accurate(d, gamma):
    random = np.random.default_rng(17)
    points, number = random.normal(size=(200, d)), np.zeros(200, np.int64)
    weight = 10.0 ** random.uniform(-24, 0, 200)
    for power in (1, 2):  # a square belongs to twice the scale
        columns = np.column_stack([weight**power, weight**power * random.uniform(0.1, 1, 200)])
        both = np.column_stack([weight, columns])
        scales = np.array([power / (d * gamma)])
        for at in (None, (points + 0.1, number)):
            for own in (True, False):
                found = sums(points, both, number, scales, at=at, own=own)
                total, size, shift = plain(points, columns, number, scales, at, own)
                back = np.exp(scales[:, None] * (found.shift - shift))
                assert (np.abs(found.total[..., 1:] - total * back[..., None]) <= CLOSE * size * back[..., None]).all()


@pytest.mark.parametrize("scale", [1e20, 1e100])
@pytest.mark.parametrize("d", [5, 8, 50])
def test_the_nearest_row_is_not_skipped_by_rounding(scale, d):
    random = np.random.default_rng(18)
    points, columns = random.standard_cauchy((200, d)), np.ones((200, 1))
    number = np.arange(200)  # a block of one row is its own box
    for at in (points * 3, points + 0.1):
        found = sums(points, columns, number, np.array([scale]), at=(at, number))
        assert (found.total == 1).all()


def test_only_scales_with_vanishing_sums_are_summed_again(monkeypatch):
    asked, sum_at = [], tiles.sum_at

    def counted(blocks, targets, starts, scales, *rest, **options):
        asked.append(scales.tolist())
        return sum_at(blocks, targets, starts, scales, *rest, **options)

    monkeypatch.setattr(tiles, "sum_at", counted)
    points, columns, number = rows(19, 300, 6)
    agree(points, columns, number, np.array([0.1, 12.0, 2.0, 13.0]), own=False)
    assert asked == [[12.0, 13.0]]


class Compiler:
    """A CUDA compiler that fails on request."""

    def __init__(self, create=0, compiled=0):
        self.create, self.compiled = create, compiled

    def __getattr__(self, name):
        def call(*given):
            if name == "nvrtcGetProgramLogSize":
                given[1]._obj.value = 10
            elif name == "nvrtcGetProgramLog":
                given[1].value = b"a mistake"
            return {"nvrtcCreateProgram": self.create, "nvrtcCompileProgram": self.compiled}.get(name, 0)

        return call


@pytest.mark.parametrize(("compiler", "message"), [
    (Compiler(create=5), "rejected the program with error 5"),
    (Compiler(compiled=6), "failed with error 6: a mistake"),
])  # fmt: skip
def test_cuda_compiler_errors_are_reported(compiler, message, monkeypatch):
    monkeypatch.setattr(cuda, "_library", lambda: compiler)
    with pytest.raises(TrueupError, match=message) as error:
        cuda.compile_source("void f() {}", "--gpu-architecture=sm_90")
    assert "needs no GPU" in str(error.value)


def test_gpu_driver_errors_are_reported(monkeypatch):
    class Driver:
        def __init__(self, name):
            pass

        def cuModuleLoadData(self, *given):  # noqa: N802
            return 209

    monkeypatch.setattr(cuda.ctypes, "CDLL", Driver)
    with pytest.raises(TrueupError, match="GPU driver failed in cuModuleLoadData with error 209"):
        cuda.GpuKernel(b"", "sums")


def test_a_missing_cuda_compiler_is_reported(monkeypatch):
    class Torch:
        class version:  # noqa: N801
            cuda = None

    def none(name):
        raise OSError(name)

    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setattr(cuda.ctypes, "CDLL", none)
    with pytest.raises(TrueupError, match="NVRTC") as error:
        cuda._library.__wrapped__()
    assert "CUDA build of torch" in str(error.value)
