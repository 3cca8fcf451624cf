/**
 * Streams a database of the Factorio Learning Environment into trajectories, then reads every column and state back, byte for byte.
 *
 *     npm start                                     # the server, in another terminal
 *     npx node examples/fle-replay.ts skills.db     # or with another ADDRESS: … fle-replay.ts skills.db 127.0.0.1:50051
 *
 * A row of its table `programs` is a step: `code` is the action, `response` the observation, `value` the reward, `state_json` the state
 * `env` and `conversation_json` the state `agent`. All numbers are metrics as well. Rows that follow each other by `parent_id` are one
 * trajectory; where a program was continued twice, the second is a branch. Step 0 is the root: what was before the first program.
 */
import { basename } from 'node:path';
import process from 'node:process';
import { DatabaseSync, type SQLOutputValue } from 'node:sqlite';
import { Status } from '../gen/es/anabranch/v1/status_pb.js';
import type { Content, Step } from '../gen/es/anabranch/v1/trajectory_pb.js';
// In a project of your own: from 'anabranch/client'.
import {
  type AnabranchClient,
  connectClient,
  downloadState,
  openWriter,
  readSteps,
  type StepInit,
} from '../src/client/index.ts';

// ---- The database: rows exactly as they are stored ----

/** A value as SQLite holds it. Texts are bytes here: SQLite does not promise that they are valid UTF-8. */
interface Cell {
  readonly type: 'null' | 'integer' | 'real' | 'text' | 'blob';
  readonly value: null | bigint | number | Uint8Array;
}
type Row = ReadonlyMap<string, Cell>;

/** These columns have places of their own in a step; all others go into its info. */
const PLACED = new Set(['code', 'response', 'state_json', 'conversation_json']);
const REQUIRED = [...PLACED, 'id', 'parent_id', 'value'];

class Programs {
  readonly columns: readonly string[];
  readonly #database: DatabaseSync;

  constructor(file: string) {
    this.#database = new DatabaseSync(file, { readOnly: true });
    const described = this.#database.prepare(`SELECT name FROM pragma_table_info('programs')`).all();
    this.columns = described.map(({ name }) => String(name));
    const missing = REQUIRED.filter((name) => !this.columns.includes(name));
    if (missing.length > 0) throw new Error(`its table "programs" has no column ${missing.join(', ')}`);
  }

  /** Who follows whom, in order of id. */
  links(): { id: bigint; parentId: bigint | null }[] {
    const rows = this.#prepare('SELECT id, parent_id FROM programs ORDER BY id').all();
    return rows.map((row) => ({ id: row.id as bigint, parentId: row.parent_id as bigint | null }));
  }

  row(id: bigint): Row {
    const cells = this.columns.map((name) => {
      const quoted = `"${name.replaceAll('"', '""')}"`;
      return `typeof(${quoted}), CASE typeof(${quoted}) WHEN 'text' THEN CAST(${quoted} AS BLOB) ELSE ${quoted} END`;
    });
    const statement = this.#prepare(`SELECT ${cells.join(', ')} FROM programs WHERE id = ?`);
    statement.setReturnArrays(true);
    const values = statement.get(id) as unknown as SQLOutputValue[];
    return new Map(
      this.columns.map((name, i) => {
        const [type, value] = [values[2 * i] as Cell['type'], values[2 * i + 1] as Cell['value']];
        return [name, { type, value }];
      }),
    );
  }

  #prepare(sql: string) {
    const statement = this.#database.prepare(sql);
    statement.setReadBigInts(true);
    return statement;
  }
}

/** Programs of one trajectory, and the program that they go on from. */
interface Chain {
  readonly after: bigint | undefined;
  readonly ids: bigint[];
}

/** The first program that continues another goes on in its trajectory, a later one begins a branch. Parents come before branches. */
function chainsOf(links: readonly { id: bigint; parentId: bigint | null }[]): Chain[] {
  const ids = new Set(links.map(({ id }) => id));
  const children = Map.groupBy(links, ({ parentId }) =>
    parentId !== null && ids.has(parentId) ? parentId : undefined,
  );
  const chains: Chain[] = [];
  const waiting = (children.get(undefined) ?? []).map(({ id }) => ({ after: undefined as bigint | undefined, id }));
  for (let start = waiting.shift(); start !== undefined; start = waiting.shift()) {
    const chain: Chain = { after: start.after, ids: [] };
    for (let id: bigint | undefined = start.id; id !== undefined; ) {
      chain.ids.push(id);
      const [next, ...others]: { id: bigint }[] = children.get(id) ?? [];
      for (const other of others) waiting.push({ after: id, id: other.id });
      id = next?.id;
    }
    chains.push(chain);
  }
  const reached = chains.reduce((sum, chain) => sum + chain.ids.length, 0);
  if (reached < links.length)
    throw new Error(`${links.length - reached} of its programs follow each other in a circle`);
  return chains;
}

// ---- A row as a step, and back ----

const JSON_TYPE = 'application/json';
const TEXT_TYPE = 'text/plain; charset=utf-8';
/** Longer texts travel as bytes, which the client uploads when they are too large for a step. */
const LONGEST_TEXT = 64 * 1024;

function toStep(row: Row): StepInit {
  const types = Object.fromEntries([...row].map(([name, { type }]) => [name, type]));
  const info = [...row].filter(([name]) => !PLACED.has(name)).map(([name, cell]) => [name, toJson(cell)]);
  const numbers = [...row].filter(([, { type }]) => type === 'integer' || type === 'real');
  const { type, value } = cellOf(row, 'value');
  return {
    actions: contentsOf(row, 'code').map((content) => ({ type: 'code', content })),
    observations: contentsOf(row, 'response').map((content) => ({ type: 'response', content })),
    ...(type === 'real' || type === 'integer' ? { reward: Number(value) } : {}),
    metrics: Object.fromEntries(numbers.map(([name, cell]) => [name, Number(cell.value)])),
    infoJson: JSON.stringify(Object.fromEntries(info)),
    metadataJson: JSON.stringify({ types }), // SQLite's type of each value: JSON alone does not tell 1 from 1.0
    states: {
      ...stateOf(row, 'state_json', 'env'),
      ...stateOf(row, 'conversation_json', 'agent'),
    },
  };
}

async function toRow(client: AnabranchClient, step: Step): Promise<Row> {
  const { types } = JSON.parse(step.metadataJson) as { types: Record<string, Cell['type']> };
  const info = JSON.parse(step.infoJson) as Record<string, unknown>;
  const placed: Record<string, Uint8Array | undefined> = {
    code: await contentBytes(client, step.actions[0]?.content),
    response: await contentBytes(client, step.observations[0]?.content),
    state_json: await stateBytes(client, step, 'env'),
    conversation_json: await stateBytes(client, step, 'agent'),
  };
  const cells = Object.entries(types).map(([name, type]): [string, Cell] => {
    return [name, { type, value: PLACED.has(name) ? (placed[name] ?? null) : fromJson(type, info[name]) }];
  });
  return new Map(cells);
}

function cellOf(row: Row, name: string): Cell {
  return row.get(name) ?? { type: 'null', value: null };
}

/** The bytes of a text or blob; undefined for NULL. */
function bytesOf(row: Row, name: string): Uint8Array | undefined {
  const { type, value } = cellOf(row, name);
  if (type === 'null') return undefined;
  if (value instanceof Uint8Array) return value;
  throw new Error(`its column ${name} holds a number, which is not a text`);
}

function contentsOf(row: Row, name: string) {
  const bytes = bytesOf(row, name);
  if (bytes === undefined) return [];
  const text = bytes.length > LONGEST_TEXT ? undefined : plainText(bytes);
  return [text === undefined ? { data: bytes, mediaType: TEXT_TYPE } : { text }];
}

function stateOf(row: Row, column: string, name: string) {
  const data = bytesOf(row, column);
  return data === undefined ? {} : { [name]: { data, mediaType: JSON_TYPE } };
}

async function contentBytes(client: AnabranchClient, content: Content | undefined): Promise<Uint8Array | undefined> {
  if (content?.stateDigest !== undefined) return downloadState(client, content.stateDigest);
  return content?.data ?? (content?.text === undefined ? undefined : new TextEncoder().encode(content.text));
}

async function stateBytes(client: AnabranchClient, step: Step, name: string): Promise<Uint8Array | undefined> {
  const state = step.states.find((one) => one.name === name);
  return state === undefined ? undefined : downloadState(client, state.digest);
}

/** JSON for a value of which the type is kept beside it. What JSON cannot hold exactly becomes a string. */
function toJson({ value }: Cell): unknown {
  if (value === null) return null;
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
  if (Object.is(value, -0)) return '-0';
  if (typeof value === 'number') return Number.isFinite(value) ? value : String(value);
  return plainText(value) ?? { base64: Buffer.from(value).toString('base64') };
}

function fromJson(type: Cell['type'], json: unknown): Cell['value'] {
  if (type === 'null') return null;
  if (type === 'integer') return BigInt(json as number | string);
  if (type === 'real') return Number(json);
  if (typeof json === 'string') return new TextEncoder().encode(json);
  return new Uint8Array(Buffer.from((json as { base64: string }).base64, 'base64'));
}

/** The text that these bytes are; undefined if they are none, or hold U+0000, which texts in the store may not. */
function plainText(bytes: Uint8Array): string | undefined {
  if (bytes.includes(0)) return undefined;
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

// ---- Stream it in, read it back ----

/** Where a program is stored. */
interface Place {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
}

/** Streams all chains, each into a trajectory of its own. Steps flow as fast as they are taken; nothing is waited for but room. */
async function streamIn(client: AnabranchClient, programs: Programs, chains: readonly Chain[], name: string) {
  const places = new Map<bigint, Place>();
  for (const { after, ids } of chains) {
    const trajectoryId = await makeTrajectory(
      client,
      after === undefined ? undefined : places.get(after),
      `${name} #${ids[0]}`,
    );
    await using writer = await openWriter(client, { trajectoryId });
    for (const id of ids) {
      places.set(id, { trajectoryId, stepNumber: writer.nextStepNumber });
      await writer.ready();
      void writer.append(toStep(programs.row(id))); // seal() tells of a step that failed
    }
    await writer.seal(Status.COMPLETED, `${ids.length} programs`);
    console.log(
      `trajectory ${trajectoryId}: ${ids.length} programs${after === undefined ? '' : `, from program ${after} on`}`,
    );
  }
  return places;
}

async function makeTrajectory(client: AnabranchClient, from: Place | undefined, name: string): Promise<string> {
  const id = crypto.randomUUID();
  const labels = { source: 'fle' };
  if (from === undefined) {
    await client.trajectories.createTrajectory({ trajectoryId: id, name, labels, root: { stepNumber: 0n } });
  } else {
    await client.trajectories.branchTrajectory({ ...from, branchId: id, name, labels });
  }
  return id;
}

/** Reads every trajectory and holds each cell of each row against the database. Returns how many were equal: all, or it throws. */
async function readBack(
  client: AnabranchClient,
  programs: Programs,
  chains: readonly Chain[],
  places: ReadonlyMap<bigint, Place>,
) {
  const equal = { rows: 0, cells: 0, states: 0, stateBytes: 0 };
  for (const { ids } of chains) {
    const first = places.get(ids[0] ?? 0n);
    if (first === undefined) throw new Error(`program ${ids[0]} was not stored`);
    const remaining = ids.values();
    for await (const { step } of readSteps(client, { ...first, startStepNumber: first.stepNumber })) {
      const id = remaining.next().value;
      if (id === undefined) throw new Error(`trajectory ${first.trajectoryId} has more steps than programs`);
      compareRows(id, programs.row(id), await toRow(client, step));
      equal.rows++;
      equal.cells += programs.columns.length;
      equal.states += step.states.length;
      equal.stateBytes += step.states.reduce((sum, { size }) => sum + Number(size), 0);
    }
    if (remaining.next().done !== true)
      throw new Error(`trajectory ${first.trajectoryId} has fewer steps than programs`);
  }
  return equal;
}

function compareRows(id: bigint, expected: Row, actual: Row): void {
  for (const [name, cell] of expected) {
    const { type, value } = cellOf(actual, name);
    const same =
      cell.value instanceof Uint8Array && value instanceof Uint8Array
        ? Buffer.compare(cell.value, value) === 0
        : Object.is(cell.value, value);
    if (cell.type !== type || !same) throw new Error(`program ${id}: column ${name} did not come back as it was`);
  }
}

async function main([file, address = '127.0.0.1:50051']: readonly string[]): Promise<void> {
  if (file === undefined) throw new Error('usage: fle-replay.ts FILE [ADDRESS]');
  const programs = new Programs(file);
  const chains = chainsOf(programs.links());
  const client = connectClient({ address });
  try {
    const places = await streamIn(client, programs, chains, basename(file));
    const { rows, cells, states, stateBytes } = await readBack(client, programs, chains, places);
    console.log(
      `Read back: ${rows} programs, ${cells} values in ${programs.columns.length} columns, and ${states} states ` +
        `(${stateBytes} bytes): every one equal, byte for byte.`,
    );
  } finally {
    client.close();
  }
}

try {
  await main(process.argv.slice(2));
} catch (error) {
  console.error(`fle-replay: ${process.argv[2] ?? ''}: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
