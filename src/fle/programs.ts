import { readMeta } from './meta.ts';
import { FleImportError, type FleSource, type Row } from './source.ts';
import { cellOf, textOf, timeOf } from './text.ts';

/** A program, without its content. */
export interface Program {
  readonly id: number;
  readonly parentId: number | undefined;
  readonly createTime: number | undefined;
  readonly trajectoryKey: TrajectoryKey;
}

/** What identifies the trajectory of a program. Equal values are the same object. */
export interface TrajectoryKey {
  readonly key: string;
  readonly version: string | undefined;
  readonly instance: string | undefined;
  readonly processId: string | undefined;
  readonly taskKey: string | undefined;
  readonly model: string | undefined;
}

/** The programs of one version, by id. */
export interface Version {
  readonly version: string | undefined;
  readonly programs: ReadonlyMap<number, Program>;
}

/** Reads all programs of a source. Errors: FleImportError if an id is not an integer that a metric can represent. */
export async function readVersions(source: FleSource, signal: AbortSignal): Promise<Version[]> {
  const trajectoryKeys = new Map<string, TrajectoryKey>();
  const versions = new Map<string | undefined, Map<number, Program>>();
  for await (const row of source.readHeads()) {
    signal.throwIfAborted();
    const program = toProgram(row, trajectoryKeys, source.description);
    const { version } = program.trajectoryKey;
    const programs = versions.get(version) ?? new Map<number, Program>();
    versions.set(version, programs.set(program.id, program));
  }
  return [...versions].map(([version, programs]) => ({ version, programs }));
}

function toProgram(row: Row, trajectoryKeys: Map<string, TrajectoryKey>, description: string): Program {
  const id = wholeOf(row, 'id');
  if (id === undefined) {
    const text = textOf(cellOf(row, 'id')) ?? 'NULL';
    const expected = `expected a whole number, ${Number.MIN_SAFE_INTEGER} to ${Number.MAX_SAFE_INTEGER}`;
    throw new FleImportError(`${description}: "programs" has a row whose id is ${text}: ${expected}.`);
  }
  const createTime = timeOf(cellOf(row, 'created_at'))?.getTime();
  return { id, parentId: wholeOf(row, 'parent_id'), createTime, trajectoryKey: trajectoryKeyOf(row, trajectoryKeys) };
}

function trajectoryKeyOf(row: Row, trajectoryKeys: Map<string, TrajectoryKey>): TrajectoryKey {
  const { taskKey, processId } = readMeta(textOf(cellOf(row, 'meta')));
  const [version, instance, model] = ['version', 'instance', 'model'].map((name) => textOf(cellOf(row, name)));
  const key = JSON.stringify([version, instance, processId, taskKey, model]);
  const trajectoryKey = trajectoryKeys.get(key) ?? { key, version, instance, processId, taskKey, model };
  trajectoryKeys.set(key, trajectoryKey);
  return trajectoryKey;
}

function wholeOf(row: Row, column: string): number | undefined {
  const { value } = cellOf(row, column);
  if (typeof value !== 'bigint' && typeof value !== 'number') return undefined;
  return Number.isSafeInteger(Number(value)) ? Number(value) : undefined;
}
