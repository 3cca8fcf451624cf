import { clone, type DescMethod, type Message } from '@bufbuild/protobuf';
import { reflect } from '@bufbuild/protobuf/reflect';
import type { Transport } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { TokenKeys } from '../../src/stream/token_keys.ts';
import { outsideSql } from '../store/sql.ts';
import { addTokenKey, forgetOldTokenKeys } from '../store/token_keys.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { withHeaders } from './headers.ts';
import { call, clientOf, framesOf, METHODS, newSceneOf, reasonOf, refusalOf } from './rpcs/drive.ts';

/** The field of a request that continues after a page or message. */
const tokenField = ({ input }: DescMethod) => input.fields.find(({ name }) => /^(page|resume)_token$/.test(name));
/** The field of a response. */
const newTokenField = ({ output }: DescMethod) => output.fields.find(({ name }) => /_token$/.test(name));

const TOKEN_METHODS = METHODS.filter((method) => tokenField(method) !== undefined);

/** A request, a token that a response to it had, and all that the server sealed meanwhile. */
interface Given {
  readonly request: Message;
  readonly token: string;
  readonly sealed: readonly Sealed[];
}

interface Sealed {
  /** The cursor. */
  readonly text: string;
  readonly token: string;
}

/** Makes a scene for a method, and calls the method until it returns a token. */
async function givenBy(method: DescMethod, transport: Transport): Promise<Given> {
  const seal = vi.spyOn(TokenKeys.prototype, 'seal');
  for (const [frame] of await framesOf(method, await newSceneOf(method, clientOf(transport)))) {
    const request = withToken(method, frame!, '');
    const { pageSize } = method.input.field;
    if (pageSize !== undefined) reflect(method.input, request).set(pageSize, 1);
    for (const answer of await call(transport, method, [request])) {
      const token = reflect(method.output, answer).get(newTokenField(method)!) as string;
      if (token === '') continue;
      const sealed = seal.mock.calls.map(async ([text], i) => ({ text, token: await seal.mock.results[i]!.value }));
      return { request, token, sealed: await Promise.all(sealed) };
    }
  }
  throw new Error(`${method.name} returned no token: one of its requests must find two items`);
}

function withToken(method: DescMethod, request: Message, token: string): Message {
  const changed = clone(method.input, request);
  reflect(method.input, changed).set(tokenField(method)!, token);
  return changed;
}

/** Random bytes have a given piece of this length in one of 10^7 runs of these tests. */
const PIECE = 5;

/** The pieces of the cursor that the bytes of a token have. */
function shownBy({ text, token }: Sealed): string[] {
  const cursor = Buffer.from(text.trimEnd());
  const pieces = Array.from({ length: cursor.length - PIECE + 1 }, (_, at) => cursor.subarray(at, at + PIECE));
  const bytes = Buffer.from(token, 'base64url');
  return pieces.filter((piece) => bytes.includes(piece)).map(String);
}

describe.each(ENGINES)('page and resume tokens, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  const given = new Map<DescMethod, Given>();
  const over = (namespace: string) =>
    createGrpcTransport({ baseUrl: server.url, interceptors: [withHeaders({ 'anabranch-namespace': namespace })] });
  const ofMethod = ({ name }: DescMethod) => over(`of-${name.toLowerCase()}`);

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    server = await startTestServer({ database });
    for (const method of TOKEN_METHODS) {
      given.set(method, await givenBy(method, ofMethod(method)));
      vi.restoreAllMocks();
    }
  });
  afterAll(async () => {
    vi.restoreAllMocks();
    await server?.stop();
    await database?.drop();
  });

  it('belong to methods whose requests and responses have them', () => {
    // ReadStates returns tokens of the ListSteps request that it is given.
    const returned = METHODS.filter((method) => newTokenField(method) !== undefined && method.name !== 'ReadStates');
    expect(returned.map(({ name }) => name)).toEqual(TOKEN_METHODS.map(({ name }) => name));
    expect(returned.length).toBeGreaterThan(15);
  });

  it.each(TOKEN_METHODS)('RD12: of $name show nothing of the cursors in them', (method) => {
    const { token, sealed } = given.get(method)!;
    expect(sealed.map((each) => each.token)).toContain(token);
    for (const { text } of sealed) expect(text.trimEnd().length).toBeGreaterThanOrEqual(PIECE);
    expect(sealed.flatMap(shownBy)).toEqual([]);
  });

  it.each(TOKEN_METHODS)('RD12: of $name are refused by other methods, and in another namespace', async (method) => {
    const { request, token } = given.get(method)!;
    for (const [other, { request: theirs }] of given) {
      if (other === method) continue;
      const refusal = await refusalOf(call(ofMethod(other), other, [withToken(other, theirs, token)]));
      expect(reasonOf(refusal), other.name).toBe('INVALID_PAGE_TOKEN');
    }
    const refusal = await refusalOf(call(over('elsewhere'), method, [withToken(method, request, token)]));
    // Some methods first look up an id of the request.
    expect(reasonOf(refusal)).toMatch(/^INVALID_PAGE_TOKEN$|_NOT_FOUND$/);
  });

  it('RD12: serve after restarts and beside a new key, and are refused when their key is gone', async () => {
    const restart = async () => {
      await server.stop();
      server = await startTestServer({ database });
    };
    const refused = async () => {
      const reasons: (string | undefined)[] = [];
      for (const [method, { request, token }] of given) {
        reasons.push(reasonOf(await refusalOf(call(ofMethod(method), method, [withToken(method, request, token)]))));
      }
      return new Set(reasons);
    };
    await restart();
    expect(await refused()).toEqual(new Set([undefined]));
    const sql = await outsideSql(database);
    await addTokenKey(sql);
    await restart();
    expect(await refused()).toEqual(new Set([undefined]));
    await forgetOldTokenKeys(sql);
    await restart();
    expect(await refused()).toEqual(new Set(['INVALID_PAGE_TOKEN']));
    await sql.close();
  });
});

describe('negative control: a server whose tokens are not sealed', () => {
  it('shows cursors in the tokens of every method', async () => {
    await using server = await startTestServer();
    const transport = createGrpcTransport({ baseUrl: server.url });
    for (const method of TOKEN_METHODS) {
      vi.spyOn(TokenKeys.prototype, 'seal').mockImplementation(async (text, binding) =>
        Buffer.from(binding + text).toString('base64url'),
      );
      vi.spyOn(TokenKeys.prototype, 'open').mockImplementation(async (token, binding) =>
        Buffer.from(token, 'base64url').toString().slice(binding.length),
      );
      const { sealed } = await givenBy(method, transport);
      expect(sealed.flatMap(shownBy), method.name).not.toEqual([]);
      vi.restoreAllMocks();
    }
  });
});
