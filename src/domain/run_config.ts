import { AnabranchError, invalidField } from './errors.ts';
import { followPath, formatJson, type Json, jsonDifferences, mergeDeep, parseJson, withoutPaths } from './json.ts';
import { parsePointer } from './json_pointer.ts';
import { LIMITS } from './limits.ts';
import { type Plan, STAGE_KINDS, type StagePlan } from './run.ts';
import { fitsBytes, requireText } from './text.ts';

/** Parses a config. Configs are JSON objects as text; empty text means an object without keys. */
function readConfig(text: string): Json {
  return text === '' ? {} : parseJson(text);
}

/** A run's own part of its config. */
interface OwnConfig {
  /** A JSON object, or empty. */
  readonly configJson: string;
  /** JSON Pointers to the keys that are removed from the base before `configJson` is merged over it. */
  readonly removedConfigPaths: readonly string[];
}

/** How errors name the base config, and the request field with the run's own config. */
interface ConfigNames {
  readonly base: string;
  readonly own: string;
}

export const ROOT_CONFIG: ConfigNames = Object.freeze({ base: "the experiment's default config", own: 'config_json' });
export const BRANCH_CONFIG: ConfigNames = Object.freeze({
  base: "the parent run's effective config",
  own: 'config_overrides_json',
});

/** Checks the paths as far as possible without the base. Errors: INVALID_REQUEST with the index of the path. */
export function requireRemovedPaths(paths: readonly string[]): readonly string[] {
  for (const [i, path] of paths.entries()) {
    requireText(path, removedField(i));
    if (keysOf(path).length > 0) continue;
    const rule = 'must be a JSON Pointer (RFC 6901) to a key, such as "/optimizer/lr"';
    throw invalidField(removedField(i), `${rule}, got "${path}"`);
  }
  return paths;
}

/**
 * M4: returns the base without the removed keys, with the run's own config merged over it. All paths are looked up in
 * the base before any key is removed. So their order does not matter, and a path can be repeated or lead below another
 * one. Without own config and paths, the text of the base is returned unchanged. Errors: INVALID_REQUEST (a path that
 * leads to no key, with its index; a result that is too large).
 */
export function effectiveConfig(base: string, own: OwnConfig, names: ConfigNames): string {
  const { configJson, removedConfigPaths } = own;
  if (configJson === '' && removedConfigPaths.length === 0) return base === '' ? '{}' : base;
  const effective = formatJson(
    mergeDeep(reducedBase(readConfig(base), removedConfigPaths, names), readConfig(configJson)),
  );
  if (!fitsBytes(effective, LIMITS.effectiveConfigBytes)) {
    const [bytes, most] = [Buffer.byteLength(effective), LIMITS.effectiveConfigBytes];
    throw invalidField(
      names.own,
      `must make an effective config of at most ${most} bytes when it is merged over ${names.base}, got ${bytes} bytes`,
    );
  }
  return effective;
}

function reducedBase(base: Json, paths: readonly string[], names: ConfigNames): Json {
  const keyPaths = paths.map(keysOf);
  for (const [i, keys] of keyPaths.entries()) {
    const end = followPath(base, keys);
    if (end === 'ABSENT') {
      throw invalidField(
        removedField(i),
        `must lead to a key of ${names.base}, got "${paths[i]}", which is absent: correct or remove the path`,
      );
    }
    if (end === 'WITHIN_LIST') {
      throw invalidField(
        removedField(i),
        `must lead to a key outside of lists, got "${paths[i]}", which points into a list of ${names.base}: replace the list in ${names.own}`,
      );
    }
  }
  return withoutPaths(base, keyPaths);
}

function removedField(index: number): string {
  return `removed_config_paths[${index}]`;
}

/** Returns no keys for a text that names no key. */
function keysOf(path: string): readonly string[] {
  return parsePointer(path) ?? [];
}

/** Fields of a request that are compared with an existing run of the same name. */
export interface Stated extends OwnConfig {
  readonly plan: Plan | undefined;
}

/**
 * M4: returns the paths of fields that differ by value between an existing run and the request. The config is compared
 * only if the request has text or removed paths. Removed paths are compared as a set.
 */
export function statedDifferences(existing: Stated, stated: Stated): string[] {
  const fields: string[] = [];
  const statesConfig = stated.configJson !== '' || stated.removedConfigPaths.length > 0;
  if (statesConfig && stated.configJson !== existing.configJson) {
    const differences = jsonDifferences(readConfig(existing.configJson), readConfig(stated.configJson));
    for (const { path } of differences) fields.push(`config_json${path}`);
  }
  if (statesConfig && setText(stated.removedConfigPaths) !== setText(existing.removedConfigPaths)) {
    fields.push('removed_config_paths');
  }
  if (stated.plan !== undefined) fields.push(...planDifferences(existing.plan, stated.plan));
  return fields;
}

/** Returns a text that is equal for equal sets. */
function setText(paths: readonly string[]): string {
  return JSON.stringify([...new Set(paths)].sort());
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

/** Number of listed fields, and characters of each. An error must fit into the headers of a response. */
const NAMED_FIELDS = 20;
const FIELD_LETTERS = 120;

export function configMismatch(run: { readonly id: string; readonly name: string }, fields: readonly string[]) {
  const named = fields.slice(0, NAMED_FIELDS).map((field) => shortened(field));
  const more = fields.length > named.length ? ` and ${fields.length - named.length} more` : '';
  return new AnabranchError(
    'CONFIG_MISMATCH',
    `Run "${run.name}" exists with other values: ${named.join(', ')}${more}. Send the same values, leave them unset to use the run as it is, or use another name.`,
    { metadata: { run_id: run.id, fields: named.join(',') } },
  );
}

function shortened(field: string): string {
  const letters = [...field];
  return letters.length <= FIELD_LETTERS ? field : `${letters.slice(0, FIELD_LETTERS).join('')}…`;
}
