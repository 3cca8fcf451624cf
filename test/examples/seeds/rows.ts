/** Rows of the three systems, and the values that an imported record keeps: see docs/coming-from.md. */
import { type Timestamp, timestampFromMs, timestampMs } from '@bufbuild/protobuf/wkt';
import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';

export type Value = null | boolean | number | string | readonly Value[] | { readonly [key: string]: Value };
export type Row = Readonly<Record<string, Value>>;
/** Rows by table. */
export type Rows = Readonly<Record<string, readonly Row[]>>;

/**
 * By table and name, the columns of a row without a field in Anabranch: those that `docs/coming-from.md` calls kept.
 */
export function keep(table: string, row: Row, columns: readonly string[]): { [table: string]: Row } {
  return { [table]: Object.fromEntries(columns.map((column) => [column, row[column] ?? null])) };
}

/** The kept values of a row in this metadata. */
export function keptOf(table: string, metadataJson: string): Row {
  return metadataJson === '' ? {} : ((JSON.parse(metadataJson) as Record<string, Row>)[table] ?? {});
}

export function textOf(value: Value | undefined): string {
  return typeof value === 'string' ? value : '';
}

export function numberOf(value: Value | undefined): number {
  return typeof value === 'number' ? value : 0;
}

/** NULL for empty text. */
export function nullable(text: string | undefined): string | null {
  return text === undefined || text === '' ? null : text;
}

export function jsonOf(value: Value | undefined): string {
  return value === null || value === undefined ? '' : JSON.stringify(value);
}

export function fromJson(text: string): Value {
  return text === '' ? null : (JSON.parse(text) as Value);
}

/** Numbers by name; a missing name is NULL. */
export function metricsOf(row: Row, columns: readonly string[]): { [name: string]: number } {
  const numbers = columns.flatMap((column) => (typeof row[column] === 'number' ? [[column, row[column]]] : []));
  return Object.fromEntries(numbers);
}

export function fromMetrics(metrics: { readonly [name: string]: number }, columns: readonly string[]): Row {
  return Object.fromEntries(columns.map((column) => [column, metrics[column] ?? null]));
}

/** Their times are naive UTC with up to six digits of a second: `2026-03-01T12:00:00.123456`. */
export function timeOf(value: Value | undefined): Timestamp | undefined {
  if (typeof value !== 'string') return undefined;
  const [seconds = '', fraction = ''] = value.split('.');
  const time = timestampFromMs(Date.parse(`${seconds.replace(' ', 'T')}Z`));
  return { ...time, nanos: Number(fraction.padEnd(9, '0')) };
}

export function fromTime(time: Timestamp | undefined): string | null {
  if (time === undefined) return null;
  const seconds = new Date(timestampMs({ ...time, nanos: 0 })).toISOString().slice(0, 19);
  return `${seconds}.${String(time.nanos).padStart(9, '0').slice(0, 6)}`;
}

const STATUSES: Readonly<Record<string, Status>> = {
  pending: Status.PENDING,
  initializing: Status.INITIALIZING,
  running: Status.RUNNING,
  active: Status.RUNNING,
  paused: Status.PAUSED,
  completed: Status.COMPLETED,
  failed: Status.FAILED,
  cancelled: Status.CANCELLED,
};

export function statusOf(value: Value | undefined): Status {
  const status = STATUSES[textOf(value)];
  if (status === undefined) throw new Error(`${JSON.stringify(value)} is not a status of CUA or SSDB`);
  return status;
}

/** The name of the status in SSDB, where `running` is called `active`. */
export function fromStatus(status: Status, running: 'running' | 'active' = 'running'): string {
  if (status === Status.RUNNING) return running;
  return Object.entries(STATUSES).find(([, each]) => each === status)?.[0] ?? '';
}

const WAYS: Readonly<Partial<Record<Status, readonly Verb[]>>> = {
  [Status.PENDING]: [],
  [Status.RUNNING]: ['start'],
  [Status.PAUSED]: ['start', 'pause'],
  [Status.COMPLETED]: ['start', 'complete'],
  [Status.FAILED]: ['start', 'fail'],
  [Status.CANCELLED]: ['start', 'cancel'],
};

export type Verb = 'start' | 'pause' | 'complete' | 'fail' | 'cancel';

/** The verbs that bring a PENDING resource to its original status. INITIALIZING is set at creation. */
export function wayTo(status: Status): readonly Verb[] {
  return WAYS[status] ?? [];
}
