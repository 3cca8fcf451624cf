"""The rules of the fields that recorders write. Bounds are numbers, or names of limits. Generated from proto/."""

RULES: dict[str, dict[str, int | str]] = {
    "Step.actions": {"max_items": "stepParts"},
    "Step.observations": {"max_items": "stepParts"},
    "Step.metrics": {"max_pairs": "metrics", "keys.min_bytes": 1, "keys.max_bytes": "metricKeyBytes"},
    "Step.states": {"max_items": "statesPerStep"},
    "Step.labels": {"max_pairs": "stepLabels", "keys.min_bytes": 1, "keys.max_bytes": "labelKeyBytes", "values.max_bytes": "labelValueBytes"},
    "StepTag.name": {"pattern": "^[A-Za-z][A-Za-z0-9._/-]{0,127}$"},
    "Seal.message": {"max_bytes": 4096},
    "MetricPoint.key": {"min_bytes": 1, "max_bytes": "seriesNameBytes"},
    "Action.type": {"max_bytes": "typeBytes"},
    "Action.name": {"max_bytes": "actionNameBytes"},
    "Action.call_id": {"max_bytes": "callIdBytes"},
    "Observation.type": {"max_bytes": "typeBytes"},
    "Observation.call_id": {"max_bytes": "callIdBytes"},
    "StepState.name": {"max_bytes": "stateNameBytes"},
    "StepState.digest": {"max_bytes": 64},
    "StepState.media_type": {"max_bytes": "mediaTypeBytes", "pattern": "^[ -~]*$"},
    "Content.uri": {"max_bytes": "uriBytes"},
    "Content.media_type": {"max_bytes": "mediaTypeBytes", "pattern": "^[ -~]*$"},
    "Tensor.dtype": {"max_bytes": "dtypeBytes"},
    "Tensor.shape": {"max_items": "tensorDimensions"},
}
