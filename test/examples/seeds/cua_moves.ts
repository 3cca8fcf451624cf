/** Brings imported resources of CUA to their original status by verbs. Exports their statuses and history. */
import { Status, type StatusChange } from '../../../gen/es/anabranch/v1/status_pb.js';
import { fromStatus, keep, keptOf, nullable, type Row, type Rows, statusOf, textOf, type Verb, wayTo } from './rows.ts';

/** Names of some CUA statuses in Anabranch. Where two map to one, the phase distinguishes them. */
const WORDS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  step: { rollout_collecting: 'running', rollout_running: 'running', training: 'running' },
  rollout: { env_creation: 'initializing', agent_init: 'initializing' },
  environment: { creating: 'initializing', terminated: 'completed', error: 'failed' },
};

/** The phase for a status that has a counterpart of its own. */
const PHASES: Readonly<Record<string, string>> = {
  rollout_collecting: 'rollout_collection',
  rollout_running: 'rollout_execution',
  training: 'training',
  env_creation: 'env_creation',
  agent_init: 'agent_initialization',
};

const HISTORY = ['id', 'old_status', 'new_status', 'progress_percent', 'metadata_json', 'changed_at', 'created_at'];
export const KEPT_OF_HISTORY: readonly string[] = HISTORY;

const RESULTS: Readonly<Record<Verb, Status>> = {
  start: Status.RUNNING,
  pause: Status.PAUSED,
  complete: Status.COMPLETED,
  fail: Status.FAILED,
  cancel: Status.CANCELLED,
};

export interface Said {
  readonly message: string;
  readonly metadataJson: string;
}

export type Verbs = Readonly<Partial<Record<Verb, (said: Said) => Promise<unknown>>>>;

/** Its status in Anabranch. */
export function statusHere(table: string, status: Row[string] | undefined): Status {
  return statusOf(WORDS[table]?.[textOf(status)] ?? textOf(status));
}

/** Its status in CUA; where two map to one, by the phase. */
export function statusThere(table: string, status: Status, phase = ''): string {
  const ours = fromStatus(status);
  const theirs = Object.entries(WORDS[table] ?? {}).filter(([, word]) => word === ours);
  return theirs.find(([word]) => PHASES[word] === phase)?.[0] ?? (theirs.length === 1 ? theirs[0]?.[0] : ours) ?? ours;
}

/** Brings it to its original status. Each verb has the message of its history entry. */
export async function move(
  table: string,
  row: Row,
  verbs: Verbs,
  tell: ((message: string) => Promise<unknown>) | undefined,
  history: readonly Row[],
): Promise<void> {
  const own = history.filter(({ entity_type, entity_id }) => entity_type === table && entity_id === row.id);
  for (const verb of wayTo(statusHere(table, row.status))) {
    const told = own.find(({ new_status }) => statusHere(table, new_status) === RESULTS[verb]);
    const message = verb === 'fail' ? row.error_message : told?.status_message;
    await verbs[verb]?.({ message: textOf(message), metadataJson: told === undefined ? '' : keptChange(table, told) });
  }
  if (!saysError(table, row)) await tell?.(textOf(row.status_message));
}

function keptChange(table: string, change: Row): string {
  const same = ({ old_status, new_status }: Row) =>
    fromStatus(statusHere(table, old_status)) === old_status &&
    fromStatus(statusHere(table, new_status)) === new_status;
  const columns = HISTORY.filter((column) => !(same(change) && column.endsWith('_status')));
  return JSON.stringify(keep('status_history', change, columns));
}

/** The status message is stored separately unless it is an error; an error is stored with the failure. */
export function displaced(table: string, row: Row): string {
  return saysError(table, row) ? 'status_message' : 'error_message';
}

function saysError(table: string, row: Row): boolean {
  return statusHere(table, row.status) === Status.FAILED && row.error_message !== null;
}

interface Moved {
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
}

/** The three columns for the status; their original values are kept above. */
export function fromStatuses(table: string, { status, statusMessage, phase }: Moved): Row {
  const said = nullable(statusMessage);
  const place = status === Status.FAILED && said !== null ? 'error_message' : 'status_message';
  return { status: statusThere(table, status, phase), status_message: null, error_message: null, [place]: said };
}

/** The imported rows of `status_history`, oldest first. */
export function fromHistory(table: string, id: Row[string] | undefined, changes: readonly StatusChange[]): Row[] {
  return changes.flatMap((change) => {
    const kept = keptOf('status_history', change.metadataJson);
    if (kept.id === undefined) return [];
    const [old_status, new_status] = [fromStatus(change.oldStatus), fromStatus(change.newStatus)];
    const said = { old_status, new_status, status_message: change.message };
    return [{ entity_type: table, entity_id: id ?? null, ...said, ...kept }];
  });
}

/** The rows of a table; empty if the table is missing. */
export function rowsOf(rows: Rows, table: string): readonly Row[] {
  return rows[table] ?? [];
}
