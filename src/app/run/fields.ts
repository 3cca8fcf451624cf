import { invalidField } from '../../domain/errors.ts';
import { parseUuid } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Plan } from '../../domain/run.ts';
import { fitsBytes, requireJson, requireText } from '../../domain/text.ts';
import type { ExperimentPlace } from '../../store/contract/experiment.ts';
import type { Said } from '../../store/contract/run.ts';

/** What the nouns of the books have in common: the checks that no rule of a proto can say. Each throws INVALID_REQUEST, naming the field. */

export function requireLabels(labels: ReadonlyMap<string, string>, field = 'labels'): ReadonlyMap<string, string> {
  for (const pair of labels) for (const text of pair) requireText(text, field);
  return labels;
}

/** The id of something new: the client's, else one of the server's. */
export function newId(id: string, field: string, make: () => string): string {
  return id === '' ? make() : parseUuid(id, field);
}

/** A name that is changed: it cannot be taken away. */
export function requireNewName(name: string): string {
  if (name === '') throw invalidField('name', 'must have 1 to 256 bytes: a name cannot be taken away');
  return requireText(name, 'name');
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
  if (id !== '') return { id: parseUuid(id, 'experiment_id') };
  return name === '' ? undefined : { name: requireText(name, 'experiment_name') };
}

/** What a verb says beside itself. */
export function requireSaid(said: Said): Said {
  requireText(said.message, 'message');
  requireJson(said.metadataJson, 'metadata_json');
  requireJson(said.resultJson, 'result_json');
  if (said.phase !== undefined) requireText(said.phase, 'phase');
  return said;
}

/** Named things of a map that have 1 to 128 bytes of name, and are not too many. */
export function requireNames(map: ReadonlyMap<string, unknown>, field: string, most: number): void {
  if (map.size > most) throw invalidField(field, `must hold at most ${most} entries, not ${map.size}`);
  for (const name of map.keys()) {
    requireText(name, field);
    if (name === '' || !fitsBytes(name, LIMITS.metricKeyBytes)) {
      throw invalidField(field, `names must have 1 to ${LIMITS.metricKeyBytes} bytes`);
    }
  }
}
