import { stripVTControlCharacters } from 'node:util';
import { fromJsonString } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SearchHitSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { GENTLE, HASTY, MAIN_LINE, plantTree } from './grove.ts';
import { type CliOptions, runCli } from './run_cli.ts';

describe.each(ENGINES)('anabranch search, on %s', (engine) => {
  let server: TestServer;
  let runId: string;
  const OF_RUN = '01990000-0000-7000-8000-000000000077';

  beforeAll(async () => {
    server = await startTestServer({ engine });
    const client = connectClient({ address: server.url });
    await plantTree(client);
    await client.runs.createExperiment({ name: 'water' });
    const { run } = await client.runs.createRun({
      name: 'river',
      experimentName: 'water',
      mainTrajectory: {
        trajectoryId: OF_RUN,
        taskId: 'rowing',
        root: { stepNumber: 0n, observations: [{ type: 'text', content: { text: 'a \u001b[31mred\nriver' } }] },
      },
    });
    runId = run?.id ?? '';
    client.close();
  });
  afterAll(() => server?.stop());

  const search = (args: readonly string[], options: CliOptions = {}) =>
    runCli(['search', ...args, '--address', server.url], options);

  it('prints a line for each match, with trajectory, step, field and the text around it', async () => {
    const { code, stdout, stderr } = await search(['BEND 12', '--trajectory', MAIN_LINE]);
    expect({ code, stdout }).toEqual({ code: 0, stdout: `${MAIN_LINE}@12 observations[0].content.text: bend 12\n` });
    expect(stderr).toBe('1 match in 31 steps.\n');
  });

  it('marks the match on a terminal, and shows no control characters of the text', async () => {
    const { stdout } = await search(['red', '--run', 'river'], { terminal: true });
    expect(stdout).toContain('\u001b[7mred\u001b[27m');
    expect(stripVTControlCharacters(stdout)).toBe(`${OF_RUN}@0 observations[0].content.text: a  [31mred river\n`);
  });

  it('shows on a terminal how much was searched, in a line that the result replaces', async () => {
    const { stderr } = await search(['bend', '--trajectory', GENTLE], { terminal: true });
    expect(stderr.startsWith('\r\u001b[K')).toBe(true);
    expect(stderr.endsWith('\r\u001b[K25 matches in 26 steps.\n')).toBe(true);
  });

  it.each([
    [['--tree', HASTY], 1],
    [['--run', 'river'], 1],
    [['--run', 'river', '-e', 'water'], 1],
    [['-e', 'water'], 1],
    [['--task', 'rowing'], 1],
    [['--task', 'sailing'], 0],
    [[], 2],
  ])('%j searches there only', async (place, count) => {
    const { code, stdout } = await search(['river', ...place]);
    expect({ code, lines: stdout.split('\n').length - 1 }).toEqual({ code: 0, lines: count });
  });

  it('--run accepts an id', async () => {
    expect((await search(['river', '--run', runId])).stdout).toContain(`${OF_RUN}@0 `);
  });

  it('--limit ends the search after so many matches, and says that there may be more', async () => {
    const { stdout, stderr } = await search(['bend', '--trajectory', MAIN_LINE, '--limit', '3']);
    expect(stdout.split('\n').map((line) => line.split(' ')[0])).toEqual([
      `${MAIN_LINE}@1`,
      `${MAIN_LINE}@2`,
      `${MAIN_LINE}@3`,
      '',
    ]);
    expect(stderr).toMatch(/^3 matches in \d+ steps\. --limit N continues the search\.\n$/);
  });

  it('--json prints each match as JSON, one per line', async () => {
    const { stdout } = await search(['bend 1', '--tree', HASTY, '--json', '--limit', '2']);
    const hits = stdout
      .trimEnd()
      .split('\n')
      .map((line) => fromJsonString(SearchHitSchema, line));
    expect(hits.map(({ field, match }) => [field, match])).toEqual([
      ['observations[0].content.text', 'bend 1'],
      ['observations[0].content.text', 'bend 1'],
    ]);
  });

  it('ends with exit code 1 when it is interrupted', async () => {
    const stop = new AbortController();
    stop.abort();
    expect(await search(['bend'], { signal: stop.signal })).toMatchObject({ code: 1, stderr: 'Interrupted.\n' });
  });
});
