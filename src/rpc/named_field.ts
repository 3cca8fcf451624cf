import type { DescField, DescMessage, Message } from '@bufbuild/protobuf';
import { type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import { AnabranchError, type Reason } from '../domain/errors.ts';

/** Reasons that are about something that the request named, and the key under which their metadata says what. */
const NAMED: Readonly<Partial<Record<Reason, string>>> = {
  TRAJECTORY_NOT_FOUND: 'trajectory_id',
  STEP_NOT_FOUND: 'step_number',
  TAG_NOT_FOUND: 'tag',
  STATE_NOT_FOUND: 'digest',
  TRAJECTORY_EXISTS: 'trajectory_id',
  REQUEST_ID_REUSED: 'request_id',
  BRANCH_POINT_BEYOND_END: 'step_number',
  EXPERIMENT_NOT_FOUND: 'experiment',
  RUN_NOT_FOUND: 'run',
  STAGE_NOT_FOUND: 'stage',
  EXPERIMENT_EXISTS: 'experiment',
  RUN_EXISTS: 'run',
  NO_MAIN_TRAJECTORY: 'run_id',
  TASK_NOT_FOUND: 'task',
  VALIDATOR_NOT_FOUND: 'validator',
  GROUP_NOT_FOUND: 'group',
  ROLLOUT_NOT_FOUND: 'rollout',
  ENVIRONMENT_NOT_FOUND: 'environment',
  ROLLOUT_EXISTS: 'rollout',
  ENVIRONMENT_EXISTS: 'environment',
};

/**
 * What was thrown, with the field of the request in which the caller named what it is about, where there is one:
 * `rollouts[3].task_id`. One of many stands in the text as well, since it cannot be told from its value alone.
 */
export function nameField(error: unknown, schema: DescMessage, request: Message): unknown {
  if (!(error instanceof AnabranchError) || error.violations.length > 0) return error;
  const key = NAMED[error.reason];
  const value = key === undefined ? undefined : error.metadata[key];
  if (key === undefined || value === undefined) return error;
  const sought = { noun: key.replace(/_id$/, ''), value: value.toLowerCase(), own: makesOwn(error.reason) };
  const fields = [...fieldsOf(reflect(schema, request), sought, '')];
  const field = fieldAmong(fields, error.reason, key);
  if (field === undefined) return error;
  const { reason, message, metadata, cause } = error;
  const text = field.includes('[') ? `${field}: ${message}` : message;
  return new AnabranchError(reason, text, { metadata, violations: [{ field, description: message }], cause });
}

function fieldAmong(fields: readonly string[], reason: Reason, key: string): string | undefined {
  // The same number may be a step of many trajectories, of which only one has an end before it.
  if (key === 'step_number') return fields.length === 1 ? fields[0] : undefined;
  // What a request makes stands behind what it makes it of.
  return makesOwn(reason) ? fields.at(-1) : fields[0];
}

/** The request makes something of its own, under an id or a name that is taken. */
function makesOwn(reason: Reason): boolean {
  return reason.endsWith('_EXISTS');
}

/** Paths of the fields that name that thing. */
function* fieldsOf(message: ReflectMessage, sought: Sought, path: string): Generator<string> {
  for (const field of message.fields) {
    const hasMessages = field.message !== undefined && field.fieldKind !== 'map';
    // Lists of a million numbers are not looked through for a name.
    if (!(hasMessages || names(field.name, sought, path)) || !message.isSet(field)) continue;
    for (const [place, part] of partsOf(message, field)) {
      const at = `${path}${field.name}${place}`;
      if (isMessage(part)) yield* fieldsOf(part, sought, `${at}.`);
      else if (String(part).toLowerCase() === sought.value) yield at;
    }
  }
}

interface Sought {
  readonly noun: string;
  readonly value: string;
  /** It may be the id or the name of what the request makes. */
  readonly own: boolean;
}

/** What a field holds, each with its place in it. */
function* partsOf(message: ReflectMessage, field: DescField): Generator<[place: string, part: unknown]> {
  if (field.fieldKind !== 'list') yield ['', message.get(field)];
  else for (const [i, part] of [...message.get(field)].entries()) yield [`[${i}]`, part];
}

function isMessage(part: unknown): part is ReflectMessage {
  return typeof part === 'object' && part !== null && 'desc' in part && 'fields' in part;
}

/** Whether a field of that name names things of a kind: `task`, `task_id`, `branch_trajectory_id`. */
function names(field: string, { noun, own }: Sought, path: string): boolean {
  if (own && path === '' && OWN.has(field)) return true;
  const bare = field.replace(/_(id|ids|name)$/, '');
  return bare === noun || bare.endsWith(`_${noun}`);
}

const OWN: ReadonlySet<string> = new Set(['id', 'name', 'branch_id']);
