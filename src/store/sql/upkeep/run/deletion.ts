import { runHint, trajectoryHint } from '../../../../domain/change.ts';
import { AnabranchError, experimentNotFound, runNotFound } from '../../../../domain/errors.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import type { BranchPolicy, RunDeletion } from '../../../contract/experiment.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { chunksOf, padded } from '../../kit/kept_queries.ts';
import { type NamespaceTransaction, type Transaction, write } from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { PENDING_LAST } from '../../records/rollout/rows.ts';

export async function deleteRun(
  engine: Engine,
  namespace: string,
  id: string,
  onBranches: BranchPolicy,
  cancelLive = false,
): Promise<RunDeletion> {
  return deleteAndAnnounce(engine, async (tx) => {
    const row = await visibleById(tx.in(namespace), 'runs', id).select('key').executeTakeFirst();
    if (row === undefined) throw runNotFound(id);
    const cascade = new CascadingDeletion(tx.in(namespace), [row.key], undefined);
    const deletion = await cascade.carryOut(`Run ${id}`, onBranches, cancelLive);
    if (!deletion.runKeys.includes(row.key)) throw runNotFound(id);
    return deletion;
  });
}

export async function deleteExperiment(
  engine: Engine,
  namespace: string,
  id: string,
  onBranches: BranchPolicy,
  cancelLive = false,
): Promise<RunDeletion> {
  return deleteAndAnnounce(engine, async (tx) => {
    const query = visibleById(tx.in(namespace), 'experiments', id).select('key');
    // This lock prevents new runs and trajectories in the experiment.
    const row = await engine.locks.rows(query, 'delete').executeTakeFirst();
    if (row === undefined) throw experimentNotFound(id);
    return new CascadingDeletion(tx.in(namespace), [], row.key).carryOut(`Experiment ${id}`, onBranches, cancelLive);
  });
}

async function deleteAndAnnounce(
  engine: Engine,
  work: (tx: Transaction) => Promise<RunDeletion>,
): Promise<RunDeletion> {
  const deletion = await write(engine, work, { unbounded: true });
  engine.changes.announce([...deletion.runKeys.map(runHint), ...deletion.trajectoryKeys.map(trajectoryHint)]);
  return deletion;
}

/** A trajectory outside the deleted runs that branches from a trajectory inside them. */
interface OutsideTrajectory {
  readonly tree: bigint;
  readonly key: bigint;
  readonly id: string;
  readonly run: bigint | null;
  readonly run_id: string | null;
}

interface Outside {
  readonly runs: readonly { readonly key: bigint; readonly id: string }[];
  readonly trajectories: readonly OutsideTrajectory[];
}

/**
 * B4: hides runs, optionally with their experiment, and all their trajectories. Takes the locks that writers and
 * branches take, so that these find nothing afterwards. All descendants are found and locked before anything is hidden,
 * so that no branch is created in between. Trajectories are marked here and purged later.
 * Locks are taken in the order experiment, run, rollout, trajectory, each by key. A deletion that deadlocks with
 * another one is retried.
 */
class CascadingDeletion {
  readonly #tx: NamespaceTransaction;
  readonly #experiment: bigint | undefined;
  /** Keys of runs to lock next. */
  #wanted: readonly bigint[];
  readonly #runs = new Set<bigint>();
  /** By key: whether the trajectory was visible before this deletion. */
  readonly #trajectories = new Map<bigint, boolean>();

  constructor(tx: NamespaceTransaction, runs: readonly bigint[], experiment: bigint | undefined) {
    this.#tx = tx;
    this.#wanted = runs;
    this.#experiment = experiment;
  }

  async carryOut(what: string, onBranches: BranchPolicy, cancelLive: boolean): Promise<RunDeletion> {
    for (;;) {
      await this.#lockRuns();
      const live = await this.#lockRollouts();
      if (live > 0n && !cancelLive) throw runActive(what, live);
      await this.#lockTrajectories();
      const outside = await this.#findOutside();
      if (outside.runs.length === 0 && outside.trajectories.length === 0) break;
      if (onBranches === 'REFUSE') throw hasBranches(what, outside);
      await this.#takeIn(outside);
    }
    await this.#hide();
    const visible = [...this.#trajectories].flatMap(([key, isVisible]) => (isVisible ? [key] : []));
    return {
      runs: BigInt(this.#runs.size),
      trajectories: BigInt(visible.length),
      runKeys: [...this.#runs],
      trajectoryKeys: visible,
    };
  }

  /** Omits runs that were deleted in the meantime. */
  async #lockRuns(): Promise<void> {
    const query = this.#tx.db
      .selectFrom('runs')
      .select('key')
      .where('namespace', '=', this.#tx.namespace)
      .where('hidden', '=', 0)
      .orderBy('key');
    if (this.#experiment !== undefined && this.#runs.size === 0) {
      const ofExperiment = query.where('experiment', '=', this.#experiment);
      for (const { key } of await this.#tx.engine.locks.rows(ofExperiment, 'delete').execute()) this.#runs.add(key);
    }
    for (const keys of paddedChunks(this.#wanted)) {
      for (const { key } of await this.#tx.engine.locks.rows(query.where('key', 'in', keys), 'delete').execute())
        this.#runs.add(key);
    }
  }

  /**
   * Locks rollouts that are not terminal, so that none is claimed afterwards; earlier claims have created their
   * trajectories. Rollouts are not changed, because they are hidden with their run. Returns the number of live
   * rollouts.
   */
  async #lockRollouts(): Promise<bigint> {
    let live = 0n;
    for (const keys of paddedChunks([...this.#runs])) {
      const locked = await this.#tx.db
        .with('l', (db) => {
          const open = db.selectFrom('rollouts').select('status').where('run', 'in', keys);
          const inOrder = open
            .where('status', 'in', ['PENDING', ...LIVE])
            .orderBy(PENDING_LAST)
            .orderBy('key');
          return this.#tx.engine.locks.rows(inOrder, 'delete');
        })
        .selectFrom('l')
        .select(({ fn }) => fn.countAll<bigint>().as('live'))
        .where('status', 'in', LIVE)
        .executeTakeFirst();
      live += locked?.live ?? 0n;
    }
    return live;
  }

  async #lockTrajectories(): Promise<void> {
    const query = this.#tx.db
      .selectFrom('trajectories')
      .select(['tree', 'key', 'hidden'])
      .where('namespace', '=', this.#tx.namespace)
      .orderBy('tree')
      .orderBy('key');
    const locked = [];
    if (this.#experiment !== undefined) locked.push(query.where('experiment', '=', this.#experiment));
    for (const keys of paddedChunks([...this.#runs])) locked.push(query.where('run', 'in', keys));
    for (const each of locked) {
      for (const row of await this.#tx.engine.locks.rows(each, 'delete').execute())
        this.#trajectories.set(row.key, !isSet(row.hidden));
    }
  }

  /** Finds branches outside the deletion that would survive it. */
  async #findOutside(): Promise<Outside> {
    const runs: { key: bigint; id: string }[] = [];
    const trajectories: OutsideTrajectory[] = [];
    const branches = this.#tx.db
      .selectFrom('trajectories as d')
      .innerJoin('trajectories as t', (join) => join.onRef('t.tree', '=', 'd.tree').onRef('t.parent', '=', 'd.key'))
      .leftJoin('runs as r', 'r.key', 't.run')
      .select(['t.tree', 't.key', 't.id', 't.run', 'r.id as run_id'])
      .where('t.namespace', '=', this.#tx.namespace)
      .where('t.purging', '=', 0)
      .orderBy('t.key');
    for (const keys of paddedChunks([...this.#runs])) {
      runs.push(
        ...(await this.#tx.db
          .selectFrom('runs')
          .select(['key', 'id'])
          .where('namespace', '=', this.#tx.namespace)
          .where('parent', 'in', keys)
          .where('hidden', '=', 0)
          .orderBy('key')
          .execute()),
      );
      trajectories.push(...(await branches.where('d.run', 'in', keys).execute()));
    }
    if (this.#experiment !== undefined)
      trajectories.push(...(await branches.where('d.experiment', '=', this.#experiment).execute()));
    return {
      runs: runs.filter(({ key }) => !this.#runs.has(key)),
      trajectories: trajectories.filter(({ key }) => !this.#trajectories.has(key)),
    };
  }

  /** CASCADE: adds runs that branch off. A trajectory without a run is assigned to one of the deleted runs. */
  async #takeIn({ runs, trajectories }: Outside): Promise<void> {
    const wanted = new Set(runs.map(({ key }) => key));
    const [adopter] = this.#runs;
    for (const { tree, key, run } of trajectories) {
      if (run !== null) {
        wanted.add(run);
        continue;
      }
      await this.#tx.db
        .updateTable('trajectories')
        .set(adopter === undefined ? { experiment: this.#experiment ?? null } : { run: adopter })
        .where('tree', '=', tree)
        .where('key', '=', key)
        .execute();
    }
    this.#wanted = [...wanted].sort((a, b) => (a < b ? -1 : 1));
  }

  async #hide(): Promise<void> {
    const hidden = { hidden: 1, update_time: this.#tx.engine.sql.now } as const;
    const purging = { ...hidden, purging: 1, trimming: 0 } as const;
    for (const keys of paddedChunks([...this.#runs])) {
      await this.#tx.db.updateTable('trajectories').set(purging).where('run', 'in', keys).execute();
      await this.#tx.db.updateTable('runs').set(hidden).where('key', 'in', keys).execute();
      await this.#tx.db.deleteFrom('retention_policies').where('run', 'in', keys).execute();
    }
    if (this.#experiment === undefined) return;
    await this.#tx.db.updateTable('trajectories').set(purging).where('experiment', '=', this.#experiment).execute();
    await this.#tx.db.updateTable('experiments').set(hidden).where('key', '=', this.#experiment).execute();
    await this.#tx.db.deleteFrom('retention_policies').where('experiment', '=', this.#experiment).execute();
  }
}

function* paddedChunks(keys: readonly bigint[]): Generator<readonly bigint[]> {
  for (const some of chunksOf(keys)) yield padded(some);
}

export const LIVE = ['INITIALIZING', 'RUNNING'];

export function runActive(what: string, live: bigint): AnabranchError {
  return new AnabranchError(
    'RUN_ACTIVE',
    `${what} has live rollouts (INITIALIZING or RUNNING): ${live}. Wait until they end, or set cancel_live (later calls of their workers then fail).`,
    { metadata: { rollouts: `${live}` } },
  );
}

function hasBranches(what: string, { runs, trajectories }: Outside): AnabranchError {
  const ids = [...new Set([...runs.map(({ id }) => id), ...trajectories.map(({ id, run_id }) => run_id ?? id)])];
  const named = ids.slice(0, LIMITS.namedBranches);
  const more = ids.length > named.length ? ` and ${ids.length - named.length} more` : '';
  return new AnabranchError(
    'HAS_BRANCHES',
    `${what} has branches outside of it (${named.join(', ')}${more}). Delete them first, or set on_branches to CASCADE (delete them too).`,
    { metadata: { branch_ids: named.join(',') } },
  );
}
