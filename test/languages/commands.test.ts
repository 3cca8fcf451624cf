/**
 * The commands of Helm, kubectl and docker in all documents and heads of manifests, as these programs read them. Helm
 * and kubectl run without a cluster, docker by its reference.
 */
import { cpSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { commandsOf, commandsOfHead } from '../docs/commands.ts';
import { createAuthority } from '../support/certificates.ts';
import { type Docker, dockerReference } from './docker_reference.ts';
import { run } from './run.ts';
import { installHelmAndKubectl } from './tools.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const HAS_PROGRAMS = process.platform === 'linux' && process.arch === 'x64';
/** No server listens there. */
const NOWHERE = '127.0.0.1:1';

interface Release {
  readonly info: { readonly notes: string; status: string };
  readonly config: object;
  readonly manifest: string;
  readonly hooks: readonly { readonly manifest: string }[];
}
// biome-ignore lint/suspicious/noExplicitAny: test/languages/deploy.test.ts checks the types.
type Manifest = any;

/** Names and keys of the secrets that the pods of a manifest read. */
function secretKeysOf(manifest: Manifest): [string, string][] {
  const { template } = manifest?.spec?.jobTemplate?.spec ?? manifest?.spec ?? {};
  if (template === undefined) return [];
  const { containers, volumes } = template.spec;
  const env: Manifest[] = containers.flatMap((container: Manifest) => container.env ?? []);
  const texts = [...containers.flatMap(({ args = [] }: Manifest) => args), ...env.map(({ value = '' }) => value)];
  const files = (folder: string) =>
    texts.flatMap((text) => new RegExp(`(?:^|=)/${folder}/(.+)`, 'u').exec(text)?.[1] ?? []);
  const mounted = volumes.flatMap(({ name, secret, projected }: Manifest) => [
    ...(secret ? [[secret.secretName, secret.items?.map(({ key }: Manifest) => key) ?? files(name)]] : []),
    ...(projected?.sources ?? []).flatMap(({ secret: source }: Manifest) =>
      source ? [[source.name, source.items.map(({ key }: Manifest) => key)]] : [],
    ),
  ]);
  const variables = env.flatMap(({ valueFrom }) =>
    valueFrom ? [[valueFrom.secretKeyRef.name, [valueFrom.secretKeyRef.key]]] : [],
  );
  return [...mounted, ...variables].flatMap(([name, keys]) => keys.map((key: string) => [name, key]));
}

async function commandsOfDocuments(program: string): Promise<string[]> {
  const documents = (await run('git', ['ls-files', '*.md'], { cwd: ROOT })).trim().split('\n');
  const commands = documents.flatMap((file) => commandsOf(textOf(file)));
  return [...commands, ...RESTORE, ...RESTORE_SQLITE].filter((command) => command.startsWith(`${program} `));
}

const textOf = (file: string) => readFileSync(path.join(ROOT, file), 'utf8');
const PODS = ['deploy/kubernetes/restore.yaml', 'deploy/kubernetes/restore-sqlite.yaml'];
const [RESTORE, RESTORE_SQLITE] = PODS.map((file) => commandsOfHead(textOf(file))) as [string[], string[]];
const OPERATIONS = [...commandsOf(textOf('docs/operations.md')), ...RESTORE, ...RESTORE_SQLITE];

describe.skipIf(!HAS_PROGRAMS)('Helm and kubectl', () => {
  let bin: string;
  let folder: string;
  let env: Record<string, string>;

  beforeAll(async () => {
    bin = await installHelmAndKubectl();
  }, 600_000);

  beforeEach(() => {
    folder = mkdtempSync(path.join(os.tmpdir(), 'commands-'));
    env = {
      HOME: folder,
      PATH: `${bin}${path.delimiter}${process.env.PATH}`,
      KUBECONFIG: path.join(folder, 'config'),
      DATABASE_URL: 'postgres://db/anabranch',
      ADMIN_URL: 'postgres://db/postgres',
      RESTORED_URL: 'postgres://db/restored',
    };
    const clusters = [{ name: 'a', cluster: { server: `http://${NOWHERE}` } }];
    const contexts = [{ name: 'a', context: { cluster: 'a' } }];
    const authority = createAuthority();
    const { cert, key } = authority.issue();
    for (const [name, text] of Object.entries({
      config: JSON.stringify({ clusters, contexts, 'current-context': 'a' }),
      'tls.crt': cert,
      'tls.key': key,
      'ca.crt': authority.cert,
      'admin.key': 'a key',
    }))
      writeFileSync(path.join(folder, name), text);
    cpSync(path.join(ROOT, 'deploy'), path.join(folder, 'deploy'), { recursive: true });
  });

  const shell = (command: string, settings: Record<string, string> = {}) =>
    run('sh', ['-ec', command], { cwd: folder, env: { ...env, ...settings } });

  /** Expects that a command is complete: it ends well, or only because nothing listens. */
  async function expectRead(command: string): Promise<void> {
    // Two words only name a command.
    const typed = /^\S+ \S+$/u.test(command) ? `${command} --help` : command.replace('REGISTRY', NOWHERE);
    await shell(typed).catch((error: Error) => {
      if (!/connect: connection refused|The connection to the server \S+ was refused/u.test(error.message)) throw error;
    });
  }

  it('read the commands of all documents', async () => {
    const commands = [...(await commandsOfDocuments('helm')), ...(await commandsOfDocuments('kubectl'))];
    expect(commands.length).toBeGreaterThan(15);
    for (const command of commands) await expectRead(command);
  });

  it.each([
    ['helm rolback anabranch --wait', 'unknown command "rolback"'],
    ['helm rollback --wait', 'requires at least 1 argument'],
    ['helm rollback anabranch --waits', 'unknown flag: --waits'],
    ['helm upgrade anabranch --wait', 'requires 2 arguments'],
    ['helm uninstal', 'unknown command "uninstal"'],
    ['helm package deploy/helm/other', 'no such file'],
    ['kubectl expel', 'unknown command "expel"'],
    ['kubectl rollout restarts deployment/anabranch', 'unknown command "restarts'],
    ['kubectl rollout status --watch', 'required resource not specified'],
    ['kubectl port-forward service/anabranch --address=::', 'list of ports are required'],
    ['kubectl create job backup-now --form=cronjob/anabranch-backup', 'unknown flag: --form'],
    ['kubectl create secret tls anabranch-tls --cert=tls.crt', 'must be specified'],
    ['kubectl create secret generic anabranch-admin --from-file=admin=admin.keys', 'no such file'],
  ])('refuse `%s`', async (command, message) => {
    await expect(expectRead(command)).rejects.toThrow(message);
  });

  it('install, watch, upgrade and roll back as docs/operations.md says, with secrets and names that exist', async () => {
    const history = await releasesOf(OPERATIONS);
    expect(history.length).toBeGreaterThan(2);
    const [first, last] = [history[0]!, history.at(-1)!];
    expect(last.config).toMatchObject(first.config);
    const texts = [last.manifest, ...last.hooks.map((hook) => hook.manifest)];
    const manifests: Manifest[] = texts.flatMap((text) => parseAllDocuments(text).map((each) => each.toJS()));
    const { spec } = manifests.find((each) => each?.kind === 'Deployment').spec.template;
    expect(spec.containers[0].image).toBe(`registry.example/anabranch:0.${history.length}.0`);

    const monitor = manifests.find((each) => each?.kind === 'ServiceMonitor');
    const rule = manifests.find((each) => each?.kind === 'PrometheusRule');
    expect([monitor, rule].map(({ metadata }) => metadata.labels.release)).toEqual(['prometheus', 'prometheus']);
    const { ingress } = manifests.find((each) => each?.kind === 'NetworkPolicy').spec;
    const admitted = { namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'monitoring' } } };
    expect(ingress).toContainEqual({ ports: [{ port: 'metrics' }], from: [admitted] });

    const created: Record<string, string[]> = {};
    for (const command of OPERATIONS.filter((each) => / create secret /u.test(each))) {
      const secret = JSON.parse(await shell(`${command} --dry-run=client --output=json`));
      const keys = Object.keys(secret.data).sort();
      expect(created[secret.metadata.name] ?? keys).toEqual(keys);
      created[secret.metadata.name] = keys;
    }
    const chart = 'helm template anabranch deploy/helm/anabranch --set adminKey.secret=anabranch-admin';
    const backup = 'backup.enabled=true,backup.claim=backups';
    const rendered = [await shell(`${chart},${backup}`), await shell(`${chart},${backup},database.engine=sqlite`)];
    const examples = rendered
      .concat(textOf('deploy/kubernetes/worker.yaml'))
      .flatMap((text) => parseAllDocuments(text));
    const used: Record<string, string[]> = {};
    for (const manifest of [...manifests, ...examples.map((each) => each.toJS())])
      for (const [name, key] of secretKeysOf(manifest)) used[name] = [...new Set([...(used[name] ?? []), key])].sort();
    expect(created).toEqual(used);

    const names = OPERATIONS.flatMap(
      (command) => command.match(/(?<=[ =])(?:deployment|service|cronjob|pod|secret)\/[\w-]+/gu) ?? [],
    );
    expect(names.length).toBeGreaterThan(3);
    const pods = PODS.flatMap((file) => parseAllDocuments(textOf(file)).map((each) => each.toJS()));
    const installed = [...manifests, ...pods]
      .filter(Boolean)
      .map(({ kind, metadata }) => `${kind.toLowerCase()}/${metadata.name}`);
    const secrets = Object.keys(created).map((name) => `secret/${name}`);
    expect([...installed, ...secrets]).toEqual(expect.arrayContaining(names));

    const { notes } = first.info;
    const noted = notes.split('\n').filter((line) => line.startsWith('  '));
    expect(noted.length).toBeGreaterThan(1);
    for (const command of noted) await expectRead(command.trim());
  });

  it('lead to addresses that the documented certificate has as names', async () => {
    const [, list = ''] = /\[certificate\]\(\S+\) needs the names (.+?):\n/su.exec(textOf('docs/operations.md'))!;
    const names = [...list.matchAll(/`(.+?)`/gu)].map(([, name]) => name);
    const chart = 'helm template anabranch deploy/helm/anabranch -n training --set adminKey.secret=admin';
    const rendered = await shell(`${chart},backup.enabled=true,backup.claim=backups,database.engine=sqlite`);
    const notes = textOf('deploy/helm/anabranch/templates/NOTES.txt');
    const shown = notes.replace('{{ include "anabranch.name" . }}', 'anabranch').replace(/\{\{.*?\}\}/u, 'training');
    const texts = [rendered, shown, textOf('deploy/kubernetes/worker.yaml'), textOf('docs/operations.md')];
    const called = texts.flatMap((text) => [...text.matchAll(/(anabranch[a-z.-]*):50051/gu)].map(([, name]) => name!));
    const services = rendered
      .split('---\n')
      .map((each) => parse(each))
      .filter((each) => each?.kind === 'Service');
    expect(services).toHaveLength(2);
    // A forwarded port is on this machine.
    const needed = new Set([...called, ...services.map(({ metadata }) => metadata.name), 'localhost']);
    expect(names.sort()).toEqual([...needed].sort());
  });

  it('wait for a backup, and restore it after the last instance has stopped and before one starts', () => {
    /** Expects that commands have these parts, in this order. */
    const expectOrder = (commands: readonly string[], ...parts: string[]) => {
      const places = parts.map((part) => commands.findIndex((command) => command.includes(part)));
      for (const [i, place] of places.entries()) expect(place, parts[i]).toBeGreaterThan(places[i - 1] ?? -1);
    };
    expectOrder(OPERATIONS, 'create job backup-now', 'wait --for=condition=complete --timeout=1h job/backup-now');
    expectOrder(
      RESTORE,
      'delete deployment/anabranch --cascade=foreground',
      'wait --for=condition=Ready --timeout=5m pod/restore',
      'createdb',
      'pg_restore',
      'delete pod/restore secret/anabranch-database',
      'create secret generic anabranch-database',
      'helm upgrade',
    );
    expectOrder(RESTORE_SQLITE, 'pod/restore', 'anabranch restore', 'delete pod/restore', 'claim=restored --wait');
  });

  /** Executes the commands of Helm. Each upgrade is to another version of the chart. */
  async function releasesOf(commands: readonly string[]): Promise<Release[]> {
    // What Helm asks of a cluster before it renders.
    const answers: Record<string, object> = {
      '/version': { major: '1', minor: '37', gitVersion: 'v1.37.1' },
      '/api': { kind: 'APIVersions', versions: ['v1'] },
      '/apis': { kind: 'APIGroupList', apiVersion: 'v1', groups: [] },
      '/api/v1': { kind: 'APIResourceList', groupVersion: 'v1', resources: [] },
    };
    await using cluster = createServer(({ url = '' }, response) => {
      const answer = answers[url.split('?')[0]!];
      response.writeHead(answer ? 200 : 404, { 'content-type': 'application/json' }).end(JSON.stringify(answer ?? {}));
    });
    await new Promise<void>((resolve) => cluster.listen(0, '127.0.0.1', resolve));
    const settings = {
      HELM_KUBEAPISERVER: `http://127.0.0.1:${(cluster.address() as AddressInfo).port}`,
      HELM_DRIVER: 'memory',
      HELM_MEMORY_DRIVER_DATA: path.join(folder, 'releases.json'),
    };
    const history: Release[] = [];
    for (const command of commands) {
      const verb = /^helm (install|upgrade|rollback) /u.exec(command)?.[1];
      if (verb === undefined) continue;
      writeFileSync(settings.HELM_MEMORY_DRIVER_DATA, JSON.stringify(history));
      if (verb === 'rollback') {
        expect(await shell(`${command} --dry-run=client`, settings)).toContain('Rollback was a success');
        continue;
      }
      const release: Release = JSON.parse(await shell(`${command} --dry-run=client --output=json`, settings));
      for (const each of history) each.info.status = 'superseded';
      release.info.status = 'deployed';
      releaseChart(history.push(release) + 1);
    }
    return history;
  }

  /** Makes the chart that of another version, which has one more value. */
  function releaseChart(minor: number): void {
    const edit = (file: string, change: (text: string) => string) => {
      const name = path.join(folder, 'deploy/helm/anabranch', file);
      writeFileSync(name, change(readFileSync(name, 'utf8')));
    };
    edit('Chart.yaml', (text) => text.replace(/^(version|appVersion): .*$/gmu, `$1: 0.${minor}.0`));
    edit('values.yaml', (text) => `${text}of${minor}:\n  value: 1\n`);
    edit('values.schema.json', (text) => text.replace('"properties": {', `"properties": { "of${minor}": {},`));
    edit('templates/NOTES.txt', (text) => `${text}{{ .Values.of${minor}.value }}\n`);
  }
});

describe('docker', () => {
  let docker: Docker;
  beforeAll(async () => {
    docker = await dockerReference();
  }, 600_000);

  it('has the commands of all documents', async () => {
    const commands = await commandsOfDocuments('docker');
    expect(commands.length).toBeGreaterThan(10);
    for (const command of commands) expect(() => docker.read(command.split(' ').slice(1)), command).not.toThrow();
  });

  it.each([
    ['start-all', 'no such file'],
    ['push', '"NAME[:TAG]"'],
    ['build --tags a:1 .', 'unknown flag: --tags'],
    ['build -t a:1', '"PATH | URL | -"'],
    ['build . -t', '-t needs a value'],
    ['run -v a:/data', '"IMAGE [COMMAND] [ARG...]"'],
    ['run --volumes a:/data image', 'unknown flag: --volumes'],
    ['buildx build --platform linux/amd64 --pushed .', 'unknown flag: --pushed'],
    ['buildx built .', 'no such file'],
    ['compose start-all', 'no such file'],
    ['compose --profiles balanced up', 'unknown flag: --profiles'],
    ['compose up --detached', 'unknown flag: --detached'],
    ['compose cp anabranch:/secrets/ca.crt', '"SERVICE:SRC_PATH DEST_PATH|-"'],
    ['compose exec db', '"SERVICE COMMAND [ARGS...]"'],
  ])('refuses `docker %s`', (words, message) => {
    expect(() => docker.read(words.split(' '))).toThrow(message);
  });
});
