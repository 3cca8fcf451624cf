import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { describe, expect, it } from 'vitest';
import { createDatabase } from '../support/database.ts';
import { ROOT } from './source.ts';

const { scripts } = JSON.parse(readFileSync(path.join(ROOT, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>;
};

describe('the scripts of package.json', () => {
  it('npm start runs the server, passes its flags, and stops it when interrupted; so does npm run serve', async () => {
    expect(scripts.serve).toBe(scripts.start);
    await using database = await createDatabase('sqlite');
    const flags = ['--json', '--listen', '127.0.0.1:0', '--database', database.url];
    const npm = spawn('npm', ['start', '--silent', '--', ...flags], {
      cwd: ROOT,
      env: { ...process.env, ANABRANCH_LOG_LEVEL: 'warn' },
      stdio: ['ignore', 'pipe', 'inherit'],
      detached: true,
    });
    const exited = once(npm, 'exit');
    try {
      const [line] = (await Promise.race([once(createInterface(npm.stdout), 'line'), exited])) as [string];
      const { event, url } = JSON.parse(line) as { event: string; url: string };
      expect(event).toBe('ready');
      expect(await (await fetch(`${url}/healthz`)).text()).toBe('ok');
      process.kill(-(npm.pid ?? 0), 'SIGINT'); // like Ctrl-C: to npm and all its processes
      await exited;
      await expect(fetch(`${url}/healthz`)).rejects.toThrow();
    } finally {
      if (npm.exitCode === null && npm.signalCode === null) process.kill(-(npm.pid ?? 0), 'SIGKILL');
    }
  });

  it('run on the Node of the dependencies: none names a path or a version of its own', () => {
    for (const script of Object.values(scripts)) expect(script).not.toMatch(/\/node(\s|$)|\bnpx\b|nvm/);
  });
});
