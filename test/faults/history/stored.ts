/** The contents of the store after a run: through the API, and by plain SQL without the service. */
import { createHash, type Hash } from 'node:crypto';
import { type AnabranchClient, readSteps } from '../../../src/client/index.ts';
import { outsideSql } from '../../store/sql.ts';
import type { TestDatabase } from '../../support/database.ts';
import { requireIntact } from '../../support/intact.ts';
import { readTableSteps, type TableStep } from '../../support/stored_steps.ts';
import type { SeenStep } from './history.ts';
import { contentOf } from './steps.ts';

/** A step as the tables have it. */
export interface StoredStep extends SeenStep {
  readonly epoch: bigint;
}

/** A step as ReadSteps returns it: with the trajectory that owns it, and the digest of its state, if it has one. */
export interface ReadStep extends StoredStep {
  readonly owner: string;
  readonly digest: string | undefined;
}

export interface StoredTrajectory {
  readonly id: string;
  readonly parent: string | undefined;
  readonly branchPoint: bigint | undefined;
  readonly end: bigint;
  readonly sealed: boolean;
  /** Its own steps, by plain SQL, in order of number. */
  readonly rows: readonly StoredStep[];
  /** Its whole lineage, through the API, in order of delivery. */
  readonly read: readonly ReadStep[];
  /** SHA-256 of the bytes that ReadStates returned for a step. */
  readonly states: ReadonlyMap<bigint, string>;
}

export type Stored = ReadonlyMap<string, StoredTrajectory>;

/** Reads everything in the database of a run that has ended. Throws if the database is damaged. */
export async function collectStored(client: AnabranchClient, database: TestDatabase): Promise<Stored> {
  await requireIntact(client);
  const sql = await outsideSql(database);
  try {
    const trajectories = await sql.rows(TRAJECTORIES);
    const rows = Map.groupBy(await readTableSteps(sql), ({ owner }) => owner);
    const found = new Map<string, StoredTrajectory>();
    for (const row of trajectories) {
      const id = String(row.id);
      found.set(id, {
        id,
        parent: row.parent_id === null ? undefined : String(row.parent_id),
        branchPoint: row.branch_point === null ? undefined : BigInt(String(row.branch_point)),
        end: BigInt(String(row.next_step_number)),
        sealed: row.status !== 'RUNNING',
        rows: (rows.get(id) ?? []).map(storedStep),
        read: await readWhole(client, id),
        states: await readStates(client, id),
      });
    }
    return found;
  } finally {
    await sql.close();
  }
}

const TRAJECTORIES = `select t.id, p.id as parent_id, t.branch_point, t.next_step_number, t.status
  from trajectories t left join trajectories p on p.tree = t.tree and p.key = t.parent order by t.key`;

function storedStep({ step, writerEpoch }: TableStep): StoredStep {
  const digest = step.states[0]?.digest;
  return { number: step.stepNumber, content: contentOf(step.infoJson, digest), epoch: writerEpoch };
}

async function readWhole(client: AnabranchClient, trajectoryId: string): Promise<ReadStep[]> {
  const steps: ReadStep[] = [];
  for await (const { trajectoryId: owner, step } of readSteps(client, { trajectoryId })) {
    const digest = step.states[0]?.digest;
    const content = contentOf(step.infoJson, digest);
    steps.push({ owner, number: step.stepNumber, content, epoch: step.writerEpoch, digest });
  }
  return steps;
}

async function readStates(client: AnabranchClient, trajectoryId: string): Promise<Map<bigint, string>> {
  const hashes = new Map<bigint, Hash>();
  for await (const { pieces } of client.states.readStates({ range: { trajectoryId } })) {
    for (const { stepNumber, data } of pieces) {
      const hash = hashes.get(stepNumber) ?? createHash('sha256');
      hashes.set(stepNumber, hash.update(data));
    }
  }
  return new Map([...hashes].map(([number, hash]) => [number, hash.digest('hex')]));
}
