import { type Selectable, sql } from 'kysely';
import type { Digest } from '../../../../domain/ids.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Tables } from '../../kit/tables.ts';
import { type Transaction, write } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { encodeBytes } from '../../log/states/bytes.ts';
import { WHOLE } from '../../log/states/chain.ts';
import { dropUpload } from '../../log/states/pieces.ts';
import { isReferenced } from '../../log/states/references.ts';
import { restoreIfPossible } from '../../log/states/restore.ts';

/** `STATES` explains why the version makes this safe beside appends and deletions. */
export async function collectStates(engine: StatesEngine, ttlHours: number, limit: number): Promise<number> {
  await dropBrokenUploads(engine, ttlHours, limit);
  const collected = await collectUnreferenced(engine, ttlHours, limit);
  await releaseBases(engine);
  return collected;
}

async function collectUnreferenced(engine: StatesEngine, ttlHours: number, limit: number): Promise<number> {
  const candidates = await engine.db
    .selectFrom('states')
    .select(CANDIDATE)
    .where('referenced', '=', 0)
    .where('collected', '=', 0)
    .where('renew_time', '<', engine.sql.hoursAgo(ttlHours))
    .orderBy('renew_time')
    .limit(limit)
    .execute();
  if (candidates.length === 0) return 0;
  // Writers that read a candidate while it was referenced may refer to it. These references must be seen below.
  if (!(await engine.stateRows.outwaitReferrers(engine.db))) return 0;
  const referenced = await findReferenced(
    engine,
    candidates.map(({ key }) => key),
  );
  for (const candidate of candidates) if (referenced.has(candidate.key)) await markReferenced(engine, candidate);
  let collected = 0;
  // Dependents before their bases.
  const deepestFirst = candidates.filter(({ key }) => !referenced.has(key)).sort((a, b) => Number(b.depth - a.depth));
  for (const candidate of deepestFirst) if (await collectState(engine, candidate)) collected += 1;
  return collected;
}

type Candidate = Pick<Selectable<Tables['states']>, (typeof CANDIDATE)[number]>;

const CANDIDATE = ['key', 'namespace', 'digest', 'version', 'renew_time', 'upload', 'depth'] as const;

async function findReferenced(engine: Engine, keys: readonly bigint[]): Promise<ReadonlySet<bigint>> {
  const rows = await engine.db
    .selectFrom('states as s')
    .select('s.key')
    .where(engine.sql.among(sql.ref('s.key'), keys))
    .where(isReferenced(engine))
    .execute();
  return new Set(rows.map(({ key }) => key));
}

async function markReferenced(engine: Engine, { key, version }: Candidate): Promise<void> {
  await write(engine, async (tx) => {
    await tx.db
      .updateTable('states')
      .set({ referenced: 1, version: version + 1n })
      .where('key', '=', key)
      .where('version', '=', version)
      .execute();
  });
}

/**
 * Deletes a candidate that has not changed. Another server may have deleted it, and its bytes may have been put again:
 * such a row can have the same version, but a later time. A candidate that other states are stored as changes of can no
 * longer be read; it is deleted after them (`releaseBases`).
 */
async function collectState(
  engine: Engine,
  { namespace, digest, version, renew_time, upload }: Candidate,
): Promise<boolean> {
  const outcome = await write(engine, async (tx) => {
    const query = tx.db
      .selectFrom('states')
      .select('digest')
      .where('namespace', '=', namespace)
      .where('digest', '=', digest)
      .where('version', '=', version)
      .where('referenced', '=', 0)
      .where('renew_time', '=', renew_time);
    if ((await engine.locks.rows(query, 'delete').executeTakeFirst()) === undefined) return 'changed';
    if (!(await deleteUnlessBase(tx, namespace, digest))) {
      await tx.db
        .updateTable('states')
        .set({ collected: 1, version: version + 1n })
        .where('namespace', '=', namespace)
        .where('digest', '=', digest)
        .execute();
      return 'kept as base';
    }
    if (upload !== null) {
      // If this process ends before the chunks are deleted, they are the rest of a broken upload.
      await tx.db.insertInto('state_uploads').values({ upload, namespace, renew_time: LONG_AGO }).execute();
    }
    return 'deleted';
  });
  if (outcome === 'deleted' && upload !== null) await dropUpload(engine, upload);
  return outcome !== 'changed';
}

const LONG_AGO = '2000-01-01T00:00:00.000000Z';

/** Deletes a locked state if no other one depends on it. Appends lock a base before they store dependents. */
async function deleteUnlessBase(tx: Transaction, namespace: string, digest: Uint8Array): Promise<boolean> {
  const dependent = await tx.db
    .selectFrom('states')
    .select('digest')
    .where('namespace', '=', namespace)
    .where('base', '=', digest)
    .limit(1)
    .executeTakeFirst();
  if (dependent !== undefined) return false;
  await tx.db.deleteFrom('states').where('namespace', '=', namespace).where('digest', '=', digest).execute();
  return true;
}

async function dropBrokenUploads(engine: Engine, ttlHours: number, limit: number): Promise<void> {
  const broken = await engine.db
    .selectFrom('state_uploads')
    .select('upload')
    .where('renew_time', '<', engine.sql.hoursAgo(ttlHours))
    .limit(limit)
    .execute();
  for (const { upload } of broken) await dropUpload(engine, upload, ttlHours);
}

type CollectedBase = Pick<Candidate, 'namespace' | 'digest'>;

/**
 * Deletes collected bases without dependents, and rewrites the referenced dependents of the others. A base whose
 * dependents are all unreferenced waits until these are collected.
 */
async function releaseBases(engine: Engine): Promise<void> {
  let after: CollectedBase = { namespace: '', digest: new Uint8Array() };
  for (;;) {
    const bases = await findReleasable(engine, after);
    for (const base of bases) await releaseBase(engine, base);
    if (bases.length < BASES) return;
    after = bases.at(-1)!;
  }
}

/** Bases that one statement finds. */
const BASES = 100;

/** Returns collected bases that have no dependent, or a referenced one, in order of namespace and digest. */
async function findReleasable(engine: Engine, after: CollectedBase): Promise<CollectedBase[]> {
  const states = engine.sql.table('states');
  const { rows } = await sql<CollectedBase>`
    select s.namespace, s.digest from ${states} as s
    where s.collected and (s.namespace, s.digest) > (${after.namespace}, ${after.digest})
      and coalesce((select max(case when d.referenced then 1 else 0 end) from ${states} as d
        where d.namespace = s.namespace and d.base = s.digest), 1) = 1
    order by s.namespace, s.digest limit ${sql.lit(BASES)}`.execute(engine.db);
  return rows;
}

/** Several instances can release a base at the same time. */
async function releaseBase(engine: Engine, base: CollectedBase): Promise<void> {
  const dependents = await engine.db
    .selectFrom('states')
    .select('digest')
    .where('namespace', '=', base.namespace)
    .where('base', '=', base.digest)
    .where('referenced', '=', 1)
    .execute();
  for (const { digest } of dependents) await storeWhole(engine, base, readDigest(digest));
  for (let next: CollectedBase | undefined = base; next !== undefined; ) next = await deleteBase(engine, next);
}

/** Stores a dependent whole. Its bytes are encoded before the transaction. A damaged one stays as it is. */
async function storeWhole(engine: Engine, base: CollectedBase, dependent: Digest): Promise<void> {
  const whole = await restoreIfPossible(engine, base.namespace, dependent);
  if (whole === undefined) return;
  const encoded = await encodeBytes(whole);
  await engine.transactions.giveWayAfter(() =>
    write(engine, async (tx) => {
      // The bytes of a state never change. So only the base needs to be the same.
      await tx.db
        .updateTable('states')
        .set({ ...encoded, base: null, depth: WHOLE.depth, base_bytes: WHOLE.baseBytes })
        .where('namespace', '=', base.namespace)
        .where('digest', '=', bindDigest(dependent))
        .where('base', '=', base.digest)
        .execute();
    }),
  );
}

/** Deletes a collected base without dependents. Returns its own base if that is collected too. */
async function deleteBase(engine: Engine, { namespace, digest }: CollectedBase): Promise<CollectedBase | undefined> {
  return write(engine, async (tx) => {
    const query = tx.db
      .selectFrom('states')
      .select('base')
      .where('namespace', '=', namespace)
      .where('digest', '=', digest)
      .where('collected', '=', 1);
    const row = await engine.locks.rows(query, 'delete').executeTakeFirst();
    if (row === undefined || !(await deleteUnlessBase(tx, namespace, digest))) return undefined;
    return row.base === null ? undefined : { namespace, digest: row.base };
  });
}
