import type { DescField, DescMessage, Message } from '@bufbuild/protobuf';
import { type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import { AnabranchError, type Reason } from '../domain/errors.ts';

interface Named {
  /** Key of the error's metadata that holds the id or the name of what the error is about. */
  readonly key: string;
  /**
   * Fields of requests that hold such an id or name. If several hold it, the first of these is named: of a request that
   * creates one thing from another, what it creates.
   */
  readonly fields: readonly string[];
}

/** Reasons that are about something that a request names. */
export const NAMED: { readonly [R in Reason]?: Named } = {
  TRAJECTORY_NOT_FOUND: { key: 'trajectory_id', fields: ['trajectory_id', 'other_trajectory_id', 'tree_id'] },
  STEP_NOT_FOUND: { key: 'step_number', fields: ['step_number'] },
  TAG_NOT_FOUND: { key: 'tag', fields: ['tag', 'name'] },
  STATE_NOT_FOUND: {
    key: 'digest',
    fields: ['digest', 'state_digest', 'token_ids_state', 'prompt_token_ids_state'],
  },
  TRAJECTORY_EXISTS: { key: 'trajectory_id', fields: ['branch_trajectory_id', 'branch_id', 'trajectory_id'] },
  REQUEST_ID_REUSED: { key: 'request_id', fields: ['request_id'] },
  BRANCH_POINT_BEYOND_END: { key: 'step_number', fields: ['step_number'] },
  EXPERIMENT_NOT_FOUND: { key: 'experiment', fields: ['experiment_id', 'experiment_name', 'name'] },
  RUN_NOT_FOUND: { key: 'run', fields: ['run_id', 'run_ids', 'run_name'] },
  STAGE_NOT_FOUND: { key: 'stage', fields: ['stage_id'] },
  EXPERIMENT_EXISTS: { key: 'experiment', fields: ['experiment_id', 'name'] },
  RUN_EXISTS: { key: 'run', fields: ['branch_id', 'run_id', 'name'] },
  NO_MAIN_TRAJECTORY: { key: 'run_id', fields: ['run_id'] },
  TASK_NOT_FOUND: { key: 'task', fields: ['task_id', 'task_ids'] },
  GROUP_NOT_FOUND: { key: 'group', fields: ['group_id'] },
  ROLLOUT_NOT_FOUND: { key: 'rollout', fields: ['rollout_id', 'rollout_ids'] },
  ENVIRONMENT_NOT_FOUND: { key: 'environment', fields: ['environment_id', 'environment_ids'] },
  ROLLOUT_EXISTS: { key: 'rollout', fields: ['rollout_id'] },
  RETENTION_POLICY_NOT_FOUND: { key: 'retention_policy', fields: ['name'] },
  ENVIRONMENT_EXISTS: { key: 'environment', fields: ['environment_id'] },
};

/**
 * Returns the error with the path of the request's field that holds what the error is about: `rollouts[3].task_id`. The
 * message of the error also begins with a path into a list. Any other error is returned as it is.
 *
 * The field is found by its name and its value. That is exact, because fields with these names hold ids or names of one
 * kind: if several have the value, they are wrong together, and the first is named. Only a step number can exist in one
 * trajectory and not in another, so it is named only if the request has it once. `test/rpc/named_field.test.ts` and
 * `test/wire/rpcs.test.ts` walk all requests.
 */
export function nameField(error: unknown, schema: DescMessage, request: Message): unknown {
  if (!(error instanceof AnabranchError) || error.violations.length > 0) return error;
  const { reason, message, metadata, cause } = error;
  const named = NAMED[reason];
  const value = named && metadata[named.key];
  if (named === undefined || value === undefined) return error;
  const found = [...holders(reflect(schema, request), named.fields, value, '')];
  if (named.key === 'step_number' && found.length > 1) return error;
  const field = named.fields.flatMap((name) => found.filter((holder) => holder.name === name))[0]?.path;
  if (field === undefined) return error;
  const text = field.includes('[') ? `${field}: ${message}` : message;
  return new AnabranchError(reason, text, { metadata, violations: [{ field, description: message }], cause });
}

interface Holder {
  readonly name: string;
  readonly path: string;
}

/** Finds the fields with one of these names that hold the value. Those of a message precede those of messages in it. */
function* holders(
  message: ReflectMessage,
  names: readonly string[],
  value: string,
  above: string,
): Generator<Holder, void, undefined> {
  const set = message.fields.filter((field) => field.fieldKind !== 'map' && message.isSet(field));
  for (const field of set.filter(({ name }) => names.includes(name))) {
    for (const [index, part] of partsOf(message, field)) {
      if (String(part) === value) yield { name: field.name, path: `${above}${field.name}${index}` };
    }
  }
  for (const field of set.filter((each) => each.message !== undefined)) {
    for (const [index, part] of partsOf(message, field)) {
      if (isMessage(part)) yield* holders(part, names, value, `${above}${field.name}${index}.`);
    }
  }
}

/** Returns the values of a field, each with its index. */
function* partsOf(message: ReflectMessage, field: DescField): Generator<readonly [index: string, part: unknown]> {
  if (field.fieldKind !== 'list') yield ['', message.get(field)];
  else for (const [i, part] of [...message.get(field)].entries()) yield [`[${i}]`, part];
}

function isMessage(part: unknown): part is ReflectMessage {
  return typeof part === 'object' && part !== null && 'desc' in part && 'fields' in part;
}
