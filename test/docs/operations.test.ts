import { existsSync, readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { connectClient, openWriter } from '../../src/client/index.ts';
import { freePort } from '../support/free_port.ts';
import { startTestServer } from '../support/test-server.ts';
import { expectKnown } from './command_lines.ts';
import { commandsOf, commandsOfHead } from './commands.ts';
import { openShell } from './shell.ts';
import { programOf, readSnippets } from './snippets.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const DOCUMENT = readFileSync(path.join(ROOT, 'docs/operations.md'), 'utf8');
const SNIPPETS = readSnippets('docs/operations.md');

/** Blocks that tests run: here, and with the programs of Postgres in test/faults/documented-restore.test.ts. */
const RUN = [
  'backup-sqlite',
  'restore-sqlite',
  'moving-data',
  'retention-policies',
  'postgres-dump',
  'archive-log',
  'recover-time',
  'failover-promote',
];
/** Blocks that need a container runtime or a cluster: here and in test/languages/commands.test.ts, they are read. */
const READ = ['compose-up', 'helm-install', 'helm-watch', 'helm-upgrade', 'helm-backup'];

interface Compose {
  readonly services: Readonly<Record<string, { readonly profiles?: readonly string[] }>>;
}

/** All commands, in words. */
const COMMANDS = commandsOf(DOCUMENT).map((command) => command.replace(/ > \S+$/u, '').split(/ +/u));

describe('docs/operations.md', () => {
  it('has at most 3,500 words', () => {
    expect(DOCUMENT.trim().split(/\s+/u).length).toBeLessThanOrEqual(3500);
  });

  it('has a test for each block of commands', () => {
    expect(SNIPPETS.map(({ name }) => name).sort()).toEqual([...RUN, ...READ].sort());
    expect(DOCUMENT.match(/^```sh$/gmu)).toHaveLength(SNIPPETS.length);
  });

  it('names only commands and flags of the program', async () => {
    const head = commandsOfHead(readFileSync(path.join(ROOT, 'deploy/kubernetes/restore-sqlite.yaml'), 'utf8'));
    const inPod = head.flatMap((command) => /(?<= exec restore -- )anabranch .*/u.exec(command)?.[0].split(' ') ?? []);
    expect(inPod).toContain('restore');
    const own = [...COMMANDS, inPod].filter(([program]) => program === 'anabranch');
    expect(own.length).toBeGreaterThan(20);
    for (const [, ...words] of own) await expectKnown(words);
    for (const wrong of [['serve', '--port=1'], ['keys', 'create', '--roles'], ['start']])
      await expect(expectKnown(wrong), wrong.join(' ')).rejects.toThrow();
  });

  it('names only services and profiles of docker-compose.yml', () => {
    const { services } = parse(readFileSync(path.join(ROOT, 'docker-compose.yml'), 'utf8'), { merge: true }) as Compose;
    const profiles = new Set(Object.values(services).flatMap(({ profiles = [] }) => profiles));
    const compose = COMMANDS.filter(([program, command]) => program === 'docker' && command === 'compose');
    expect(compose.length).toBeGreaterThan(5);
    for (const [, , ...words] of compose) {
      const verb = words.findIndex((word, i) => !word.startsWith('--') && words[i - 1] !== '--profile');
      for (const [i, word] of words.entries()) if (word === '--profile') expect([...profiles]).toContain(words[i + 1]);
      const [service = ''] = words.slice(verb + 1).filter((word) => !word.startsWith('-'));
      if (service !== '') expect(Object.keys(services)).toContain(service.split(':')[0]);
    }
  });

  it('names only values of the chart, its oldest Kubernetes, and folders that exist', () => {
    const values = parse(readFileSync(path.join(ROOT, 'deploy/helm/anabranch/values.yaml'), 'utf8'));
    const { kubeVersion } = parse(readFileSync(path.join(ROOT, 'deploy/helm/anabranch/Chart.yaml'), 'utf8'));
    expect(DOCUMENT).toContain(`**Kubernetes** ${/[\d.]+(?=\.0-0$)/u.exec(kubeVersion)?.[0]} or later`);
    const set = [...DOCUMENT.matchAll(/(?:--set '?|=\w+,)([\w.]+)/gu)].map(([, key = '']) => key);
    expect(set.length).toBeGreaterThan(9);
    for (const key of set) {
      // Labels have any name.
      const names = key.replace(/(?<=\.labels)\..*/u, '').split('.');
      expect(
        names.reduce((part, name) => part?.[name], values),
        key,
      ).toBeDefined();
    }
    for (const [, folder = ''] of DOCUMENT.matchAll(/(deploy\/[\w./-]*\w)/gu))
      expect(existsSync(path.join(ROOT, folder)), folder).toBe(true);
  });

  it('backs up, restores, moves and cleans up an SQLite database as it says', async () => {
    await using other = await startTestServer();
    const port = await freePort();
    const address = `127.0.0.1:${port}`;
    await using shell = openShell({ ANABRANCH_LISTEN: address, ANABRANCH_ADDRESS: address });
    const block = (group: string) => programOf(SNIPPETS, group).trim().split('\n');
    const [online, offline] = block('backup');
    const [exporting, importing] = block('moving');
    let stop = await shell.serve('anabranch serve', 'listens on');
    const client = connectClient({ address });
    const { run } = await client.runs.createRun({ name: 'RUN', mainTrajectory: {} });
    await using writer = await openWriter(client, { trajectoryId: run!.mainTrajectoryId });
    for (let i = 0; i < 12; i += 1) await writer.append({ reward: 1, states: { env: new Uint8Array([i]) } });
    await writer.close();

    await shell.run(online!);
    const retention = await shell.run(block('retention').join('\n'));
    expect(retention).toContain('checkpoints');
    await shell.run(exporting!);
    await shell.run(importing!.replace('other:50051', `${other.host}:${other.port}`));
    const moved = connectClient({ address: other.url });
    expect((await moved.runs.listRuns({})).runs.map((each) => each.run?.name)).toEqual(['RUN']);
    moved.close();
    await stop();
    await rm(path.join(shell.folder, 'backup.db'));
    await shell.run(offline!);
    const [restoring, serving] = block('restore');
    await shell.run(restoring!);
    stop = await shell.serve(serving!, 'listens on');
    expect((await client.runs.listRuns({})).runs.map((each) => each.run?.name)).toEqual(['RUN']);
    client.close();
    await stop();
    await shell.run('anabranch verify --database sqlite:.anabranch/restored.db');
    await shell.run('anabranch vacuum --database sqlite:.anabranch/restored.db');
    await shell.run('anabranch reset --yes --database sqlite:.anabranch/data.db');
    expect(existsSync(path.join(shell.folder, '.anabranch/data.db'))).toBe(false);
  }, 300_000);
});
