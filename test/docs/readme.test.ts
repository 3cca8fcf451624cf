import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';
import { pointedAt, programOf, readSnippets } from './snippets.ts';

const ROOT = resolve(import.meta.dirname, '../..');

describe.each(ENGINES)('the TypeScript of README.md, on %s', (engine) => {
  it('runs unchanged, and prints what its comments promise', async () => {
    await using server = await startTestServer({ engine });
    const program = pointedAt(programOf(readSnippets(), 'ts'), `${server.host}:${server.port}`);

    expect(await runTypeScript(program)).toEqual({
      output: [
        '0n [0] undefined',
        '1n [1] 1',
        '2n [2] 1',
        '3n [3] 1',
        'x=2',
        '{ sharedSteps: 3n, rewardDifference: -2 }',
      ],
      complaints: '',
      code: 0,
    });

    const client = connectClient({ address: server.url });
    const { trajectories } = await client.trajectories.listTrajectories({});
    expect(trajectories.map((each) => [each.name, each.nextStepNumber, each.rewardSum])).toEqual([
      ['left', 4n, 1],
      ['main', 4n, 3],
    ]);
    client.close();
  });

  it('records a run as docs/training.md says', async () => {
    await using server = await startTestServer({ engine });
    const program = pointedAt(
      programOf(readSnippets('docs/training.md'), 'runs', 'ts'),
      `${server.host}:${server.port}`,
    );

    expect(await runTypeScript(program)).toEqual({
      output: ['{ optimizer: { lr: 0.5, momentum: 0.9 } }', 'first 100'],
      complaints: '',
      code: 0,
    });

    const client = connectClient({ address: server.url });
    const { runs } = await client.runs.listRuns({});
    expect(runs.map(({ run }) => [run?.name, run?.number, run?.branchPoint])).toEqual([
      ['run-2', 2n, 0n],
      ['first', 1n, undefined],
    ]);
    const points = [];
    for await (const { series } of client.runs.readMetrics({ runIds: [runs[1]?.run?.id ?? ''] }))
      points.push(...series);
    expect(points).toMatchObject([{ key: 'loss', metricSteps: [1n, 2n], values: [1, 0.5] }]);
    client.close();
  });
});

describe.each(ENGINES)('the rollouts of docs/training.md, on %s', (engine) => {
  it('are claimed, played, completed and read as it says', async () => {
    await using server = await startTestServer({ engine });
    const program = pointedAt(
      programOf(readSnippets('docs/training.md'), 'rollouts', 'ts'),
      `${server.host}:${server.port}`,
    );

    expect(await runTypeScript(program)).toEqual({
      output: ['guess-7 0 2', 'guess-7 1 2', '1 0.5'],
      complaints: '',
      code: 0,
    });

    const client = connectClient({ address: server.url });
    const { runs } = await client.runs.listRuns({});
    const { rollouts } = await client.rollouts.listRollouts({ runId: runs[0]?.run?.id ?? '' });
    expect(rollouts.map(({ number, success, reward, turns }) => [number, success, reward, turns])).toEqual([
      [0n, false, 0, 1n],
      [1n, true, 1, 1n],
    ]);
    client.close();
  });
});

/** Runs a program as if it were a file in the root of the repository. */
async function runTypeScript(program: string): Promise<{ output: string[]; complaints: string; code: number | null }> {
  const child = spawn(process.execPath, ['--input-type=module-typescript', '-'], { cwd: ROOT, timeout: 30_000 });
  child.stdin.end(program);
  const [output, complaints] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  return { output: output.split('\n').filter((line) => line !== ''), complaints, code: child.exitCode };
}
