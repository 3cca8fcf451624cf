import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DiffStatesResponseSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { type AnabranchClient, connectClient, openWriter, uploadState } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
const BEFORE = '{"hp":10,"at":[1,2],"mood":"calm","a/b":{"x":1},"ticks":5}';
const AFTER = '{"hp":9.0,"at":[1,2,{"z":3}],"a/b":{"x":"\\u001b[31m red"},"ticks":9007199254740993}';

describe.each(ENGINES)('anabranch diff, on %s', (engine) => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
    await client.trajectories.createTrajectory({ trajectoryId: ID });
    const writer = await openWriter(client, { trajectoryId: ID });
    const json = (text: string) => ({ data: Buffer.from(text), mediaType: 'application/json' });
    const agent = Buffer.alloc(1000);
    await writer.append({ states: { env: json(BEFORE), agent } });
    const changed = Buffer.concat([agent, Buffer.from('more')]);
    changed[100] = 1;
    changed[600] = 1;
    await writer.append({ states: { env: json(AFTER), agent: changed, 'notes/1': json('{"hp": 10}') } });
    await client.trajectories.setTag({ trajectoryId: ID, name: 'fork/1', stepNumber: 1n });
    await writer.close();
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  it('S7: shows each operation of a JSON Patch, and each changed range of other states', async () => {
    const json = await runCli(['diff', `${ID}@0`, `${ID}@1/env`, ...at]);
    const bytes = await runCli(['diff', `${ID}@0/agent`, `${ID}@1/agent`, ...at]);
    expect([json.code, bytes.code, json.stderr, bytes.stderr]).toEqual([0, 0, '', '']);
    await expect(`${json.stdout}\n${bytes.stdout}`).toMatchFileSnapshot('golden/diff.txt');
  });

  it('with colours prints the same text on a terminal', async () => {
    const { stdout } = await runCli(['diff', `${ID}@0`, `${ID}@1`, ...at], { terminal: true });
    await expect(stdout).toMatchFileSnapshot('golden/diff.terminal.txt');
  });

  it('S7: takes tags, names with slashes and digests', async () => {
    const same = await runCli(['diff', `${ID}@fork/1`, `${ID}@1`, ...at]);
    expect(same.stdout).toContain('\nThe states are identical.\n');
    const digest = await uploadState(client, Buffer.from('{"hp":10}'));
    const spaced = await runCli(['diff', digest, `${ID}@1/notes/1`, ...at]);
    expect(spaced.stdout).toContain('\nEqual as JSON: only white space, the order of keys or escapes differ.\n');
  });

  it('S7: --json prints the response', async () => {
    const { stdout } = await runCli(['diff', `${ID}@0`, `${ID}@1`, '--json', ...at]);
    const { patchJson, state } = fromJsonString(DiffStatesResponseSchema, stdout);
    expect(state?.size).toBe(BigInt(BEFORE.length));
    expect(patchJson).toContain('{"op":"replace","path":"/ticks","value":9007199254740993}');
  });

  it('names the states that a step has if it has none of that name', async () => {
    const { code, stderr } = await runCli(['diff', `${ID}@0`, `${ID}@1/mind`, ...at]);
    expect(code).toBe(1);
    expect(stderr).toContain(`has no state "mind": its states are "agent", "env", "notes/1"`);
  });
});
