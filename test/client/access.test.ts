import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { type ConnectOptions, connectClient, openWriter, readSteps, reasonOf } from '../../src/client/index.ts';
import { connectClient as connectWebClient } from '../../src/client/web/index.ts';
import { newSecret } from '../../src/domain/access.ts';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

const authority = createAuthority();

/** A server over TLS with authentication, and one on a Unix socket without. */
let folder: string;
let server: TestServer;
let local: TestServer;
let admin: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-access-'));
  admin = newSecret();
  await writeFile(path.join(folder, 'admin.key'), admin);
  await writeFile(path.join(folder, 'ca.crt'), authority.cert);
  const flags = { auth: 'required', adminKeyFile: path.join(folder, 'admin.key') };
  const files = writeIssued(authority.issue());
  server = await startTestServer({ flags: { ...flags, ...files }, settings: { authenticated: true, keyCheckMs: 20 } });
  local = await startTestServer({ flags: { listen: `unix:${path.join(folder, 'own', 'sock')}` } });
});
afterAll(async () => {
  await server?.stop();
  await local?.stop();
  await rm(folder, { recursive: true, force: true });
});

const NO_ENV = {};

/** The names of the callers that the server sees. */
async function whoCalls(options: ConnectOptions, env: Readonly<Record<string, string>> = NO_ENV) {
  const client = connectClient(options, env);
  try {
    const { caller } = await client.server.getServerInfo({});
    return [caller!.name, caller!.namespace];
  } finally {
    client.close();
  }
}

/** Creates a key. `revoke` revokes it. */
async function makeKey(name: string, namespaces: string[] = []) {
  const client = connectClient({ address: server.url, token: admin, ca: authority.cert }, NO_ENV);
  const { key, secret } = await client.admin.createKey({ name, role: Role.WRITE, namespaces });
  return {
    secret,
    revoke: async () => {
      await client.admin.revokeKey({ keyId: key!.id });
      client.close();
    },
  };
}

describe('a client', () => {
  it('calls a server over TLS with its token, in a namespace', async () => {
    const ca = authority.cert;
    const { secret } = await makeKey('agent', ['a', 'b']);
    expect(await whoCalls({ address: server.url, ca, token: admin })).toEqual(['admin', 'default']);
    expect(await whoCalls({ address: server.url, ca, token: secret, namespace: 'b' })).toEqual(['agent', 'b']);
  });

  it('takes what is not given from the environment', async () => {
    const { secret } = await makeKey('from-file', ['a', 'b']);
    const tokenFile = path.join(folder, 'token');
    await writeFile(tokenFile, `${secret}\n`);
    const env = { ANABRANCH_ADDRESS: server.url, ANABRANCH_CA_FILE: path.join(folder, 'ca.crt') };
    expect(await whoCalls({}, { ...env, ANABRANCH_TOKEN: admin })).toEqual(['admin', 'default']);
    const named = { ANABRANCH_TOKEN_FILE: tokenFile, ANABRANCH_NAMESPACE: 'a' };
    expect(await whoCalls({}, { ...env, ...named })).toEqual(['from-file', 'a']);
    expect(await whoCalls({ token: admin, namespace: 'c' }, { ...env, ...named })).toEqual(['admin', 'c']);
    expect(() => connectClient({}, { ANABRANCH_CA_FILE: path.join(folder, 'none') })).toThrow(/cannot be read: ENOENT/);
  });

  it('takes its certificate from the environment, together with the key', async () => {
    const [clients, strangers] = [createAuthority(), createAuthority()];
    const file = (name: string) => path.join(folder, name);
    await writeFile(file('clients.crt'), clients.cert);
    await writeFile(file('principals.yaml'), 'principals: [{ san: worker.example, role: work, namespaces: [a] }]');
    const { tlsCert, tlsKey } = writeIssued(clients.issue({ names: ['worker.example'] }));
    const identified = {
      ...writeIssued(authority.issue()),
      clientCa: file('clients.crt'),
      principals: file('principals.yaml'),
    };
    await using asking = await startTestServer({ flags: { auth: 'required', ...identified } });
    const env = { ANABRANCH_ADDRESS: asking.url, ANABRANCH_CA_FILE: file('ca.crt'), ANABRANCH_CERT_FILE: tlsCert };
    expect(await whoCalls({}, { ...env, ANABRANCH_KEY_FILE: tlsKey })).toEqual(['san:worker.example', 'a']);
    const { cert, key } = strangers.issue({ names: ['worker.example'] });
    await expect(whoCalls({ cert, key }, { ...env, ANABRANCH_KEY_FILE: tlsKey })).rejects.toThrow('of no authority');
    expect(() => connectClient({}, env)).toThrow(/^ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE belong together/);
    expect(() => connectClient({ key }, {})).toThrow(/^cert and key belong together/);
    const missing = { ...env, ANABRANCH_KEY_FILE: file('none') };
    expect(() => connectClient({}, missing)).toThrow(/^ANABRANCH_KEY_FILE is .*cannot be read: ENOENT/);
  });

  it('refuses a server whose certificate it does not trust', async () => {
    const other = createAuthority().cert;
    await expect(whoCalls({ address: server.url, token: admin, ca: other })).rejects.toMatchObject({
      code: Code.Unavailable,
    });
  });

  it('calls a server on a Unix socket', async () => {
    expect(local.url).toBe(`unix:${path.join(folder, 'own', 'sock')}`);
    expect(await whoCalls({ address: local.url, namespace: 'mine' })).toEqual(['anonymous', 'mine']);
  });

  it('asks once more for a token that was refused, and then fails', async () => {
    const asked: string[] = [];
    const ask = (...tokens: string[]) => {
      return () => {
        asked.push('asked');
        return Promise.resolve(tokens.shift() ?? 'none');
      };
    };
    const options = { address: server.url, ca: authority.cert };
    expect(await whoCalls({ ...options, token: ask(newSecret(), admin) })).toEqual(['admin', 'default']);
    expect(asked).toHaveLength(2);
    await expect(whoCalls({ ...options, token: ask(newSecret(), newSecret(), admin) })).rejects.toSatisfy(
      (error) => reasonOf(error) === 'UNAUTHENTICATED',
    );
    expect(asked).toHaveLength(4);
    const broken = whoCalls({ ...options, token: () => Promise.reject(new Error('no such file')) });
    await expect(broken).rejects.toEqual(
      new ConnectError('the token cannot be read: no such file', Code.Unauthenticated),
    );
  });

  it('for browsers does the same', async () => {
    const open = await startTestServer({
      flags: { auth: 'required', adminKeyFile: path.join(folder, 'admin.key') },
      settings: { authenticated: true },
    });
    const tokens = [newSecret(), admin];
    const options = { address: open.url, token: () => tokens.shift() ?? 'none', namespace: 'mine' };
    const client = connectWebClient(options);
    const { caller } = await client.server.getServerInfo({});
    expect([caller!.name, caller!.namespace]).toEqual(['admin', 'mine']);
    await client.trajectories.createTrajectory({ name: 'mine' });
    const other = connectWebClient({ ...options, token: admin, namespace: 'other' });
    expect((await other.trajectories.listTrajectories({})).trajectories).toEqual([]);
    expect((await client.trajectories.listTrajectories({})).trajectories).toHaveLength(1);
    const wrong = connectWebClient({ address: open.url, token: newSecret() });
    await expect(wrong.server.getServerInfo({})).rejects.toSatisfy((error) => reasonOf(error) === 'UNAUTHENTICATED');
    await open.stop();
  });

  it('continues a stream with the next token when its key is revoked, and loses no step', async () => {
    const [first, second] = [await makeKey('rotated'), await makeKey('rotated')];
    const tokens = [first.secret, second.secret];
    const token = () => tokens.shift() ?? second.secret;
    const client = connectClient({ address: server.url, ca: authority.cert, token }, NO_ENV);
    const trajectoryId = crypto.randomUUID();
    const writer = await openWriter(client, { trajectoryId, create: { trajectory: {} } });
    await writer.append({ reward: 1 });
    await first.revoke();
    for (let i = 0; tokens.length > 0; i += 1) await writer.append({ reward: i });
    const count = writer.nextStepNumber;
    await writer.close();
    let read = 0n;
    for await (const { step } of readSteps(client, { trajectoryId })) {
      expect(step.stepNumber).toBe(read);
      read += 1n;
    }
    expect(read).toBe(count);
    client.close();
  });
});
