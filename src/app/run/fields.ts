import { invalidField } from '../../domain/errors.ts';
import type { Plan } from '../../domain/run.ts';
import type { ExperimentPlace } from '../../store/contract/experiment.ts';

/** What the nouns of the books have in common: the checks that no rule of a proto can say. Each throws INVALID_REQUEST, naming the field. */

/** A name that is changed: it cannot be taken away. */
export function requireNewName(name: string): void {
  if (name === '') throw invalidField('name', 'must have 1 to 256 bytes: a name cannot be taken away');
}

/** Each kind once. */
export function requirePlan(plan: Plan | undefined): Plan | undefined {
  const seen = new Set<string>();
  for (const { kind } of plan?.stagePlans ?? []) {
    if (seen.has(kind)) throw invalidField('plan.stage_plans', `must name each kind once, but ${kind} is there twice`);
    seen.add(kind);
  }
  return plan;
}

/** An experiment by its id or its name, of which at most one may be given; undefined: neither is. */
export function placeOfExperiment(id: string, name: string): ExperimentPlace | undefined {
  if (id !== '' && name !== '') {
    throw invalidField('experiment_name', 'must be empty when experiment_id is set: name the experiment once');
  }
  if (id !== '') return { id };
  return name === '' ? undefined : { name };
}
