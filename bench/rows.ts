import type { PostgresType } from '../src/store/sql/kit/tables/table.ts';
import type { Engine } from './bench.ts';
import { type Payload, type RowPayload, rowPayload, variantsOf, writeNonce } from './payload.ts';

/**
 * The tables that a driver fills, and creates, in a layout without segments: a row for each step, each state and each
 * reference.
 */
export const ROW_TABLES = ['plain_states', 'plain_steps', 'plain_step_states'] as const;

export type RowTable = (typeof ROW_TABLES)[number];

/** Rows by table. Values are in the order of COLUMNS. */
export type RowSet = Partial<Record<RowTable, unknown[][]>>;

/** Columns with their Postgres types. */
export const COLUMNS: Readonly<Record<RowTable, readonly (readonly [name: string, type: PostgresType])[]>> = {
  plain_states: [
    ['namespace', 'text'],
    ['digest', 'bytea'],
    ['size', 'int8'],
    ['encoding', 'text'],
    ['data', 'bytea'],
    ['referenced', 'bool'],
    ['version', 'int8'],
    ['renew_time', 'timestamptz'],
  ],
  plain_steps: [
    ['tree', 'int8'],
    ['trajectory', 'int8'],
    ['step_number', 'int8'],
    ['namespace', 'text'],
    ['reward', 'float8'],
    ['terminated', 'bool'],
    ['truncated', 'bool'],
    ['writer_epoch', 'int8'],
    ['reward_sum', 'float8'],
    ['byte_sum', 'int8'],
    ['commit_time', 'timestamptz'],
    ['start_time', 'text'],
    ['end_time', 'text'],
    ['content_digest', 'bytea'],
    ['metrics', 'text'],
    ['actions', 'text'],
    ['observations', 'text'],
    ['info_json', 'text'],
    ['metadata_json', 'text'],
  ],
  plain_step_states: [
    ['tree', 'int8'],
    ['trajectory', 'int8'],
    ['step_number', 'int8'],
    ['name', 'text'],
    ['namespace', 'text'],
    ['digest', 'bytea'],
    ['media_type', 'text'],
    ['size', 'int8'],
  ],
};

/** A time in the form that both engines accept. */
const NOW = '2026-11-21T12:15:00.123456Z';

/**
 * Makes the rows of a step. Texts are created for each row, as by a program that stores steps as JSON. Digests are
 * random instead of computed, because hashing is not part of a driver's work.
 */
export class RowMaker {
  readonly #payloads: readonly RowPayload[];
  readonly #yes: unknown;
  readonly #no: unknown;

  constructor(payload: Payload, engine: Engine) {
    this.#payloads = Array.from({ length: variantsOf(payload) }, (_, stepNumber) => rowPayload(payload, stepNumber));
    this.#yes = engine === 'sqlite' ? 1 : true;
    this.#no = engine === 'sqlite' ? 0 : false;
  }

  add(rows: RowSet, tree: number, stepNumber: number): void {
    const { actions, observations, metrics } = this.#of(stepNumber);
    const [key, number] = [BigInt(tree), BigInt(stepNumber)];
    const texts = [JSON.stringify(metrics), JSON.stringify(actions), JSON.stringify(observations), '', ''];
    const digest = scatteredDigest(tree, stepNumber);
    rows.plain_steps?.push([
      key,
      key,
      number,
      'default',
      1,
      this.#no,
      this.#no,
      1n,
      stepNumber,
      number * 300n,
      NOW,
      null,
      null,
      digest,
      ...texts,
    ]);
    this.#addState(rows, tree, stepNumber, digest);
  }

  #of(stepNumber: number): RowPayload {
    return this.#payloads[stepNumber % this.#payloads.length]!;
  }

  #addState(rows: RowSet, tree: number, stepNumber: number, digest: Buffer): void {
    const bytes = this.#state(tree, stepNumber);
    if (bytes === undefined) return;
    const [key, number] = [BigInt(tree), BigInt(stepNumber)];
    const size = BigInt(bytes.length);
    rows.plain_states?.push(['default', digest, size, 'raw', bytes, this.#yes, 0n, NOW]);
    rows.plain_step_states?.push([key, key, number, 'env', 'default', digest, 'application/json', size]);
  }

  #state(tree: number, stepNumber: number): Buffer | undefined {
    const { state, nonceAt } = this.#of(stepNumber);
    if (state === undefined) return undefined;
    const bytes = Buffer.from(state);
    writeNonce(bytes, nonceAt, tree, stepNumber);
    return bytes;
  }
}

/** Returns 32 bytes that are spread over an index like a hash, but cost almost nothing. */
function scatteredDigest(tree: number, stepNumber: number): Buffer {
  const digest = Buffer.alloc(32);
  let word = Math.imul(tree, 0x9e3779b1) ^ Math.imul(stepNumber + 1, 0x85ebca6b);
  for (let i = 0; i < 32; i += 4) {
    word = Math.imul(word ^ (word >>> 15), 0x2c1b3c6d);
    word = Math.imul(word ^ (word >>> 12), 0x297a2d39) ^ i;
    digest.writeInt32LE(word | 0, i);
  }
  digest.writeUInt32LE(stepNumber, 28);
  digest.writeUInt32LE(tree, 24);
  return digest;
}
