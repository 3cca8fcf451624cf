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

/**
 * Returns the trajectories whose rows of steps have a gap, overlap, have other numbers than they claim, or do not end
 * where the trajectory ends.
 */
export async function findBrokenRows(sql: OutsideSql): Promise<string[]> {
  const rows = await readRows(sql);
  return [...Map.groupBy(rows, ({ id }) => `${id}`)].flatMap(([id, ofTrajectory]) => {
    let next = BigInt(`${ofTrajectory[0]!.begin_number}`);
    for (const row of ofTrajectory) {
      if (`${row.first_step_number}` !== `${next}`)
        return [`a row of ${id} begins at ${row.first_step_number}, not ${next}`];
      for (const { step } of stepsOf(id, row)) {
        if (step.stepNumber !== next) return [`step ${step.stepNumber} of ${id} is stored as step ${next}`];
        next += 1n;
      }
      if (`${row.next_step_number}` !== `${next}`)
        return [`a row of ${id} ends at ${row.next_step_number}, not ${next}`];
    }
    return `${ofTrajectory[0]!.end_number}` === `${next}` ? [] : [`the rows of ${id} end at ${next}`];
  });
}

function readRows(sql: OutsideSql): Promise<Record<string, unknown>[]> {
  return sql.rows(`select t.id, coalesce(t.branch_point + 1, 0) as begin_number, t.next_step_number as end_number,
      s.writer_epoch, s.commits, s.first_step_number, s.next_step_number, s.encoding, s.body
    from segments s join trajectories t on t.tree = s.tree and t.key = s.trajectory order by t.key, s.first_step_number`);
}

function stepsOf(owner: string, row: Record<string, unknown>): TableStep[] {
  const stored = row.body as Uint8Array;
  const body = `${row.encoding}` === '2' ? zstdDecompressSync(stored) : stored;
  const commits = (row.commits === null ? [[0, row.writer_epoch]] : JSON.parse(`${row.commits}`)) as [
    index: number,
    epoch: number | string,
  ][];
  const reader = new BinaryReader(body);
  const steps: TableStep[] = [];
  while (reader.pos < reader.len) {
    const [, epoch] = commits.findLast(([index]) => index <= steps.length)!;
    steps.push({ owner, writerEpoch: BigInt(`${epoch}`), step: fromBinary(StepSchema, reader.bytes()) });
  }
  const count = BigInt(`${row.next_step_number}`) - BigInt(`${row.first_step_number}`);
  if (BigInt(steps.length) !== count)
    throw new Error(`a row of ${owner} has ${steps.length} steps instead of ${count}`);
  return steps;
}
