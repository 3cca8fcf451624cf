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
  const rows = await sql.rows(`select t.id, s.writer_epoch, s.first_step_number, s.body from segments s
    join trajectories t on t.tree = s.tree and t.key = s.trajectory order by t.key, s.first_step_number`);
  return rows.flatMap(({ id, writer_epoch, first_step_number, body }) => {
    const reader = new BinaryReader(body as Uint8Array);
    const steps: TableStep[] = [];
    for (let number = BigInt(`${first_step_number}`); reader.pos < reader.len; number += 1n) {
      const step = fromBinary(StepSchema, reader.bytes());
      if (step.stepNumber !== number) throw new Error(`step ${step.stepNumber} of ${id} is stored as step ${number}`);
      steps.push({ owner: `${id}`, writerEpoch: BigInt(`${writer_epoch}`), step });
    }
    return steps;
  });
}
