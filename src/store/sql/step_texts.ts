import type { NewStep } from '../../domain/step.ts';
import { bindActions, bindObservations, type StateSizes } from './content_json.ts';
import { bindClientTime, bindMetrics } from './values.ts';

/** The columns of a step that take work to make. */
export interface StepTexts {
  readonly actions: string;
  readonly observations: string;
  readonly metrics: string;
  readonly startTime: string | null;
  readonly endTime: string | null;
}

/** A step whose texts were made before; then they count, not what they were made of. */
export interface BoundStep extends NewStep {
  readonly texts?: StepTexts;
}

export function bindStepTexts(step: BoundStep, sizes: StateSizes): StepTexts {
  return (
    step.texts ?? {
      actions: bindActions(step.actions, sizes),
      observations: bindObservations(step.observations, sizes),
      metrics: bindMetrics(step.metrics),
      startTime: bindClientTime(step.startTime),
      endTime: bindClientTime(step.endTime),
    }
  );
}
