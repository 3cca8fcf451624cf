import { sql } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { createStateHasher } from '../../../../domain/state_digest.ts';
import type { StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';
import { readDigest } from '../../kit/values.ts';
import { chunkDigest, decodeBytes, verified } from '../../log/states/bytes.ts';
import { MOST_CHAIN_BYTES, MOST_DELTAS, MOST_DEPENDENTS } from '../../log/states/chain.ts';
import { readPiece } from '../../log/states/pieces.ts';
import { restoreState } from '../../log/states/restore.ts';
import { confirmed } from './confirmed.ts';
import type { Report } from './segment.ts';

interface StateRow {
  readonly key: bigint;
  readonly namespace: string;
  readonly digest: Uint8Array;
  readonly size: bigint;
  readonly encoding: string;
  readonly base: Uint8Array | null;
  readonly depth: bigint;
  readonly base_bytes: bigint;
  readonly upload: string | null;
  readonly data: Uint8Array | null;
  /** Of the base. Null if there is no such row. */
  readonly of_base: bigint | null;
  readonly base_size: bigint | null;
  readonly base_depth: bigint | null;
  readonly base_base_bytes: bigint | null;
  readonly base_in_row: boolean | bigint | null;
  readonly dependents: bigint;
}

/** States of one statement: few until they turn out to be small. */
const FEWEST_ROWS = 8;
const MOST_ROWS = 256;
const READ_BYTES = 512 * 1024;

export interface StatesProgress {
  readonly done: bigint;
  readonly faults: readonly StorageFault[];
}

/** Checks all states in order of row key, so that bases mostly come before their dependents. */
export async function* checkStates(engine: Engine): AsyncGenerator<StatesProgress, void, undefined> {
  const decoded = new DecodedStates();
  let limit = FEWEST_ROWS;
  for (let after = 0n; ; ) {
    const rows = await readStates(engine, sql`s.key > ${after} order by s.key limit ${limit}`);
    const faults: StorageFault[] = [];
    for (const row of rows) faults.push(...(await checkTwice(engine, row, decoded)));
    yield { done: BigInt(rows.length), faults };
    if (rows.length < limit) return;
    after = rows.at(-1)!.key;
    const bytes = rows.reduce((sum, { data }) => sum + (data?.length ?? 0), 0);
    limit = bytes < READ_BYTES ? Math.min(limit * 2, MOST_ROWS) : FEWEST_ROWS;
  }
}

async function readStates(engine: Engine, where: ReturnType<typeof sql>): Promise<readonly StateRow[]> {
  const states = engine.sql.table('states');
  const { rows } = await sql<StateRow>`
    select s.key, s.namespace, s.digest, s.size, s.encoding, s.base, s.depth, s.base_bytes, s.upload,
      b.key as of_base, b.size as base_size, b.depth as base_depth, b.base_bytes as base_base_bytes,
      b.upload is null as base_in_row,
      (select count(*) from ${states} as d where d.namespace = s.namespace and d.base = s.digest) as dependents, s.data
    from ${states} as s left join ${states} as b on b.namespace = s.namespace and b.digest = s.base
    where ${where}`.execute(engine.db);
  return rows;
}

/** A second look reads the row again. */
function checkTwice(engine: Engine, first: StateRow, decoded: DecodedStates): Promise<readonly StorageFault[]> {
  let row: StateRow | undefined = first;
  return confirmed(async () => {
    const checked = row ?? (await readStates(engine, sql`s.key = ${first.key}`))[0];
    row = undefined;
    return checked === undefined ? [] : checkState(engine, checked, decoded);
  });
}

async function checkState(engine: Engine, row: StateRow, decoded: DecodedStates): Promise<readonly StorageFault[]> {
  const faults: StorageFault[] = [];
  const digest = readDigest(row.digest);
  const report: Report = (check, message) =>
    faults.push({ check, namespace: row.namespace, digest, message: `state ${digest}: ${message}` });
  checkChain(row, report);
  try {
    if (row.data === null) await checkChunks(engine, row, digest, report);
    else decoded.add(row.namespace, digest, await decode(engine, { ...row, data: row.data }, digest, decoded));
  } catch (error) {
    if (!(error instanceof AnabranchError)) throw error;
    if (error.reason !== 'STATE_CORRUPT' && error.reason !== 'STATE_NOT_FOUND') throw error;
    report('STATES', 'its bytes do not match its digest, or cannot be restored from its bases');
  }
  return faults;
}

function checkChain(row: StateRow, report: Report): void {
  if (Number(row.dependents) > MOST_DEPENDENTS) report('BASES', `it is the base of ${row.dependents} states`);
  if (row.base === null) return;
  const base = readDigest(row.base);
  if (row.of_base === null || row.base_size === null) {
    report('BASES', `its base ${base} does not exist`);
    return;
  }
  if (row.upload !== null || row.base_in_row === false || row.base_in_row === 0n) {
    report('BASES', `it or its base ${base} is stored in chunks`);
  }
  if (row.depth <= (row.base_depth ?? 0n) || row.depth > BigInt(MOST_DELTAS)) {
    report(
      'BASES',
      `its depth is ${row.depth}, that of its base ${base} is ${row.base_depth}, and at most ${MOST_DELTAS} are allowed`,
    );
  }
  const bytes = (row.base_base_bytes ?? 0n) + row.base_size;
  if (row.base_bytes < bytes || row.base_bytes + row.size > BigInt(MOST_CHAIN_BYTES)) {
    report(
      'BASES',
      `its bases have ${bytes} bytes, its row says ${row.base_bytes}, and a chain has at most ${MOST_CHAIN_BYTES}`,
    );
  }
}

async function decode(
  engine: Engine,
  row: StateRow & { readonly data: Uint8Array },
  digest: Digest,
  decoded: DecodedStates,
): Promise<Uint8Array> {
  const base = row.base === null ? undefined : decoded.get(row.namespace, readDigest(row.base));
  if (row.base !== null && base === undefined) return restoreState(engine, row.namespace, digest);
  return verified(decodeBytes(row, Number(row.size), digest, base), digest);
}

async function checkChunks(engine: Engine, row: StateRow, digest: Digest, report: Report): Promise<void> {
  if (row.upload === null) {
    report('STATES', 'it has neither bytes nor an upload');
    return;
  }
  const hasher = createStateHasher();
  let bytes = 0;
  const count = Math.ceil(Number(row.size) / LIMITS.chunkBytes);
  for (let ordinal = 0n; ordinal < BigInt(count); ordinal += 1n) {
    const piece = await readPiece(engine, digest, row.upload, ordinal);
    if (piece === undefined || chunkDigest(row.upload, ordinal, piece.bytes) !== piece.digest) {
      report('STATES', `chunk ${ordinal} of upload ${row.upload} is missing or damaged`);
      return;
    }
    hasher.update(piece.bytes);
    bytes += piece.bytes.length;
  }
  if (BigInt(bytes) !== row.size || hasher.digest() !== digest) {
    report('STATES', `the chunks of upload ${row.upload} do not match its digest`);
  }
}

/** Bytes of decoded states that are kept as dictionaries of others. */
const MOST_BYTES = 16 * 1024 * 1024;

/** The states that were decoded last. Their bytes were verified. */
class DecodedStates {
  readonly #states = new Map<string, Uint8Array>();
  #bytes = 0;

  get(namespace: string, digest: Digest): Uint8Array | undefined {
    const name = `${digest}/${namespace}`;
    const found = this.#states.get(name);
    if (found === undefined) return undefined;
    // Moves it to the end, so that it is dropped last.
    this.#states.delete(name);
    this.#states.set(name, found);
    return found;
  }

  add(namespace: string, digest: Digest, data: Uint8Array): void {
    const name = `${digest}/${namespace}`;
    if (this.#states.has(name)) return;
    this.#states.set(name, data);
    this.#bytes += data.length;
    for (const [oldest, { length }] of this.#states) {
      if (this.#bytes <= MOST_BYTES) return;
      this.#states.delete(oldest);
      this.#bytes -= length;
    }
  }
}
