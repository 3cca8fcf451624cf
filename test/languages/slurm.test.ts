/** The batch scripts of Slurm, run by bash as on a node: without Slurm, their `#SBATCH` lines are comments. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { expect, it } from 'vitest';
import { openShell } from '../docs/shell.ts';

const SCRIPTS = path.resolve(import.meta.dirname, '../../deploy/slurm');

const HAS_OPENSSL = spawnSync('openssl', ['version']).status === 0;

it.skipIf(!HAS_OPENSSL)(
  'the batch scripts serve workers of other nodes, and the next job begins with the backup of the last one, if it has made one',
  async () => {
    await using shell = openShell();
    const shared = path.join(shell.folder, 'shared');
    const env = {
      PATH: `${shell.folder}/bin:${process.env.PATH}`,
      HOME: shell.folder,
      TMPDIR: shell.folder,
      ANABRANCH_JOB: shared,
    };
    const worker = (command: string) => {
      const args = [path.join(SCRIPTS, 'worker.sbatch'), 'bash', '-c', command];
      return spawnSync('bash', args, { env, encoding: 'utf8', timeout: 120_000 });
    };
    const create = `curl -sS --fail --cacert "$ANABRANCH_CA_FILE" -H "authorization: Bearer $(cat "$ANABRANCH_TOKEN_FILE")" \\
    -H 'content-type: application/json' -d '{"name": "kept"}' "$ANABRANCH_ADDRESS/anabranch.v1.TrajectoryService/$0"`;
    for (const job of ['killed', 'first', 'second']) {
      const server = spawn('bash', [path.join(SCRIPTS, 'server.sbatch')], {
        env,
        stdio: ['ignore', 'pipe', 'pipe'],
        detached: true,
      });
      const kill = () => process.kill(-server.pid!, 'SIGKILL');
      using _job = { [Symbol.dispose]: () => (server.exitCode ?? server.signalCode) === null && kill() };
      let output = '';
      for (const stream of [server.stdout, server.stderr]) stream.on('data', (text) => (output += text));
      const ended = once(server, 'exit');
      if (job !== 'second') {
        const args = [path.join(SCRIPTS, 'worker.sbatch'), 'bash', '-c', create, 'CreateTrajectory'];
        const created = spawnSync('bash', args, { env, encoding: 'utf8' });
        expect(created, created.stderr + output).toMatchObject({ status: 0 });
      } else {
        const tree = worker('anabranch tree');
        expect(tree.stdout, tree.stderr + output).toContain('kept');
      }
      if (job === 'killed') {
        // While it backs up: its key, and a part of its backup, are left.
        kill();
        await ended;
        writeFileSync(path.join(shared, 'backup.new.part'), '');
        // The next job removes it, too. Here its workers begin at the same time.
        rmSync(path.join(shared, 'address'));
        continue;
      }
      server.kill('SIGTERM');
      expect(await ended, output).toEqual([0, null]);
      expect(existsSync(path.join(shared, 'backup.db'))).toBe(true);
      expect(existsSync(path.join(shared, 'address'))).toBe(false);
    }
  },
  400_000,
);
