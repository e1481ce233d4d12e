"""What ``bayesprune.compact`` makes of the masks."""

import time
from typing import Any

import bayesprune as bp
from bayesprune.cost import cost
from benchmarks.exactness.cases import Case
from benchmarks.exactness.reference import allowed, error, prepared, prune_at_random, sparsified, variation


def ours(case: Case, dtype: str) -> dict[str, Any]:
    """What ``compact`` makes of the masks."""
    model, inputs = prepared(case, dtype)
    runs = []
    for _ in range(case.repeats):
        started = time.perf_counter()
        gated = sparsified(case, model, inputs)
        sparsify_seconds = time.perf_counter() - started
        prune_at_random(gated, case.share)
        started = time.perf_counter()
        result = bp.compact(gated, inputs)
        runs.append((round(sparsify_seconds, 3), round(time.perf_counter() - started, 3)))
    median = sorted(runs, key=sum)[len(runs) // 2]
    certificate = result.certificate
    fresh = error(case, gated, result.model, inputs)
    asked = sum(outcome.units - outcome.kept for outcome in certificate.gates.values())
    limit = allowed(case, gated, inputs)
    exact = max(fresh, certificate.max_rel_error) <= limit and not certificate.note
    return {
        "input_shape": list(inputs[0].shape),
        "gates": len(certificate.gates),
        "units": sum(outcome.units for outcome in certificate.gates.values()),
        "units_asked": asked,
        "variation": variation(case, gated, inputs),
        "limit": limit,
        "ours_outcome": "exact" if exact else "refuses" if certificate.note else "wrong",
        "ours_units_removed": asked - sum(outcome.stayed for outcome in certificate.gates.values()),
        "ours_rel_error": fresh,
        "ours_certificate_rel_error": certificate.max_rel_error,
        "ours_masks_left": len(certificate.masks_left),
        "macs_before": certificate.before.macs,
        "parameters_before": cost(model, inputs).parameters,
        "ours_macs": certificate.after.macs,
        "ours_parameters": certificate.after.parameters,
        "ours_message": certificate.note,
        "sparsify_seconds": median[0],
        "compact_seconds": median[1],
        "seconds_of_runs": [round(sum(run), 3) for run in runs],
    }
