import { AnabranchError, invalidField } from './errors.ts';
import { formatJson, type Json, jsonDifferences, mergePatch, parseJson } from './json.ts';
import { LIMITS } from './limits.ts';
import { type Plan, STAGE_KINDS, type StagePlan } from './run.ts';
import { fitsBytes } from './text.ts';

/** Configs are JSON objects as text; empty means none, which is an object without keys. */
function readConfig(text: string): Json {
  return text === '' ? {} : parseJson(text);
}

/**
 * M4: what a run works by: a config (the experiment's default, or the parent's effective one) with the run's own merged over it. Where there is nothing
 * of its own it is the text it was. Refuses a result that is too large, naming the field of the run's own.
 */
export function effectiveConfig(base: string, own: string, field: string): string {
  if (own === '') return base === '' ? '{}' : base;
  const effective = formatJson(mergePatch(readConfig(base), readConfig(own)));
  if (!fitsBytes(effective, LIMITS.effectiveConfigBytes)) {
    throw invalidField(
      field,
      `makes a config of ${Buffer.byteLength(effective)} bytes together with the one that it is merged over; at most ${LIMITS.effectiveConfigBytes} are kept`,
    );
  }
  return effective;
}

/** What of a run is compared when a run of the name is there already. */
export interface Stated {
  /** Its own config; empty: not stated. */
  readonly configJson: string;
  readonly plan: Plan | undefined;
}

/** M4: where what is stated differs by value from what is there, as paths of fields; nothing that is not stated differs. */
export function statedDifferences(there: Stated, stated: Stated): string[] {
  const fields: string[] = [];
  if (stated.configJson !== '' && stated.configJson !== there.configJson) {
    const differences = jsonDifferences(readConfig(there.configJson), readConfig(stated.configJson));
    for (const { path } of differences) fields.push(`config_json${path}`);
  }
  if (stated.plan !== undefined) fields.push(...planDifferences(there.plan, stated.plan));
  return fields;
}

const PLANNED = [
  ['stages', 'stages'],
  ['groupsPerStage', 'groups_per_stage'],
  ['groupSize', 'group_size'],
  ['maxTurns', 'max_turns'],
  ['substeps', 'substeps'],
] as const satisfies readonly (readonly [keyof StagePlan, string])[];

function* planDifferences(there: Plan | undefined, stated: Plan): Generator<string> {
  if (there === undefined) {
    yield 'plan';
    return;
  }
  if (there.concurrency !== stated.concurrency) yield 'plan.concurrency';
  for (const kind of STAGE_KINDS) {
    const [one, other] = [there, stated].map((plan) => plan.stagePlans.find((stagePlan) => stagePlan.kind === kind));
    if (one === undefined && other === undefined) continue;
    if (one === undefined || other === undefined) yield `plan.stage_plans[${kind}]`;
    else for (const [key, name] of PLANNED) if (one[key] !== other[key]) yield `plan.stage_plans[${kind}].${name}`;
  }
}

/** Fields that an error names, and letters of each: it has to fit into a response's headers. */
const NAMED_FIELDS = 20;
const FIELD_LETTERS = 120;

export function configMismatch(run: { readonly id: string; readonly name: string }, fields: readonly string[]) {
  const named = fields.slice(0, NAMED_FIELDS).map((field) => shortened(field));
  const more = fields.length > named.length ? ` and ${fields.length - named.length} more` : '';
  return new AnabranchError(
    'CONFIG_MISMATCH',
    `Run "${run.name}" is there already, and was made with other values: ${named.join(', ')}${more}. State the same, leave them out to take the run as it is, or use another name.`,
    { metadata: { run_id: run.id, fields: named.join(',') } },
  );
}

function shortened(field: string): string {
  const letters = [...field];
  return letters.length <= FIELD_LETTERS ? field : `${letters.slice(0, FIELD_LETTERS).join('')}…`;
}
