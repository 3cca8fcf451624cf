import { readMeta } from './meta.ts';
import { FleImportError, type FleSource, type Row } from './source.ts';
import { cellOf, textOf, timeOf } from './text.ts';

/** A program, without its content. */
export interface Program {
  readonly id: number;
  readonly parentId: number | undefined;
  readonly createTime: number | undefined;
  readonly line: Line;
}

/** What the programs of one trajectory have in common. Equal lines are the same object. */
export interface Line {
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

/** Reads all programs of a source. Error: FleImportError if an id is not a whole number that a metric can hold. */
export async function readVersions(source: FleSource, signal: AbortSignal): Promise<Version[]> {
  const lines = new Map<string, Line>();
  const versions = new Map<string | undefined, Map<number, Program>>();
  for await (const row of source.readHeads()) {
    signal.throwIfAborted();
    const program = toProgram(row, lines, source.description);
    const { version } = program.line;
    const programs = versions.get(version) ?? new Map<number, Program>();
    versions.set(version, programs.set(program.id, program));
  }
  return [...versions].map(([version, programs]) => ({ version, programs }));
}

function toProgram(row: Row, lines: Map<string, Line>, description: string): Program {
  const id = wholeOf(row, 'id');
  if (id === undefined) {
    const text = textOf(cellOf(row, 'id')) ?? 'NULL';
    const wanted = `wanted a whole number, ${Number.MIN_SAFE_INTEGER} to ${Number.MAX_SAFE_INTEGER}`;
    throw new FleImportError(`${description}: "programs" has a row whose id is ${text}: ${wanted}.`);
  }
  const createTime = timeOf(cellOf(row, 'created_at'))?.getTime();
  return { id, parentId: wholeOf(row, 'parent_id'), createTime, line: lineOf(row, lines) };
}

function lineOf(row: Row, lines: Map<string, Line>): Line {
  const { taskKey, processId } = readMeta(textOf(cellOf(row, 'meta')));
  const [version, instance, model] = ['version', 'instance', 'model'].map((name) => textOf(cellOf(row, name)));
  const key = JSON.stringify([version, instance, processId, taskKey, model]);
  const line = lines.get(key) ?? { key, version, instance, processId, taskKey, model };
  lines.set(key, line);
  return line;
}

function wholeOf(row: Row, column: string): number | undefined {
  const { value } = cellOf(row, column);
  if (typeof value !== 'bigint' && typeof value !== 'number') return undefined;
  return Number.isSafeInteger(Number(value)) ? Number(value) : undefined;
}
