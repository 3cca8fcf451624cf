import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { OwnedStepSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient } from '../../src/client/index.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { GENTLE, LATE, MAIN_LINE, plantTree } from './grove.ts';
import { runCli } from './run_cli.ts';

describe('anabranch steps', () => {
  let server: TestServer;
  let client: AnabranchClient;
  let at: string[];

  beforeAll(async () => {
    server = await startTestServer({ engine: 'sqlite' });
    client = connectClient({ address: server.url });
    at = ['--address', server.url];
    await plantTree(client);
  });
  afterAll(async () => {
    client?.close();
    await server?.stop();
  });

  async function read(...args: string[]) {
    const { code, stdout } = await runCli(['steps', ...args, '--json', ...at]);
    expect(code).toBe(0);
    const lines = stdout.split('\n').filter((line) => line !== '');
    return lines.map((line) => fromJsonString(OwnedStepSchema, line));
  }
  const numbers = async (...args: string[]) => (await read(...args)).map(({ step }) => Number(step?.stepNumber));
  const range = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => from + i);

  it('prints every step of the lineage with its owner, and does not wait for more', async () => {
    const steps = await read(LATE);
    expect(steps.map(({ step }) => Number(step?.stepNumber))).toEqual(range(0, 23));
    expect(new Set(steps.map(({ trajectoryId }) => trajectoryId))).toEqual(new Set([MAIN_LINE, GENTLE, LATE]));
    expect(steps[21]?.step).toMatchObject({ reward: 2.25, actions: [{ name: 'paddle' }] });
    const { stdout } = await runCli(['steps', `${LATE}@22`, ...at]);
    expect(stdout).toMatch(/^── steps of .* ──$|^ +22 /m);
  });

  it('begins at a step or a tag, and ends before --to', async () => {
    expect(await numbers(LATE, '--from', '5', '--to', '8')).toEqual([5, 6, 7]);
    expect(await numbers(LATE, '--from', '20', '--to', '99')).toEqual([20, 21, 22]);
    expect(await numbers(`${MAIN_LINE}@fork`, '--to', '12')).toEqual([10, 11]);
    expect(await numbers(LATE, '--from', '23')).toEqual([]);
  });

  it.each([
    [['--from', 'x'], 2, '--from'],
    [['--to', '-1'], 2, '--to'],
    [['--from', '99'], 1, '99'],
    [['--from', '9', '--to', '5'], 1, '5'],
  ] as const)('with %s exits with an error that names the value', async (args, code, named) => {
    const outcome = await runCli(['steps', LATE, ...args, ...at]);
    expect(outcome).toMatchObject({ code, stdout: '', stderr: expect.stringContaining(named) });
  });

  it('@ and --from cannot both set the first step', async () => {
    const outcome = await runCli(['steps', `${LATE}@3`, '--from', '5', ...at]);
    expect(outcome).toMatchObject({ code: 2, stderr: expect.stringContaining('use only one of them') });
  });
});
