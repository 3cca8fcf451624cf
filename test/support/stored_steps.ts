import { zstdDecompressSync } from 'node:zlib';
import { fromBinary } from '@bufbuild/protobuf';
import { BinaryReader } from '@bufbuild/protobuf/wire';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import type { OutsideSql } from '../store/sql.ts';

/** A step as the tables have it, read without the code of the store. */
export interface TableStep {
  /** Id of the trajectory that owns it. */
  readonly owner: string;
  readonly writerEpoch: bigint;
  readonly step: Step;
}

/** Reads all steps of a database, by trajectory in order of creation, and by number. */
export async function readTableSteps(sql: OutsideSql): Promise<TableStep[]> {
  return (await readRows(sql)).flatMap((row) => stepsOf(`${row.id}`, row));
}

function readRows(sql: OutsideSql): Promise<Record<string, unknown>[]> {
  return sql.rows(`select t.id, s.writer_epoch, s.commits, s.first_step_number, s.next_step_number, s.encoding, s.body
    from segments s join trajectories t on t.tree = s.tree and t.key = s.trajectory order by t.key, s.first_step_number`);
}

function stepsOf(owner: string, row: Record<string, unknown>): TableStep[] {
  const stored = row.body as Uint8Array;
  const body = `${row.encoding}` === '2' ? zstdDecompressSync(stored) : stored;
  const epochs = row.commits === null ? undefined : epochsOf(`${row.commits}`);
  const reader = new BinaryReader(body);
  const steps: TableStep[] = [];
  while (reader.pos < reader.len) {
    const epoch = epochs === undefined ? row.writer_epoch : epochs[steps.length];
    steps.push({ owner, writerEpoch: BigInt(`${epoch}`), step: fromBinary(StepSchema, reader.bytes()) });
  }
  const count = BigInt(`${row.next_step_number}`) - BigInt(`${row.first_step_number}`);
  if (BigInt(steps.length) !== count)
    throw new Error(`a row of ${owner} has ${steps.length} steps instead of ${count}`);
  return steps;
}

/** The epoch of each step. Steps have the index of their commit. */
function epochsOf(commits: string): (number | string)[] {
  const [all, ofSteps] = JSON.parse(commits) as [[epoch: number | string, time: string][], number[]];
  return ofSteps.map((index) => all[index]![0]);
}
