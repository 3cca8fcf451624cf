/** What deploys the server, as Helm, Kubernetes and docker compose read it. No cluster and no container runtime. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { CONFIG_TABLE, type Key, TABLE } from '../../src/config/table.ts';
import { expectKnown } from '../docs/command_lines.ts';
import { readDockerfile } from '../package/image.ts';
import { RULES_FILE } from '../support/monitoring.ts';
import { run } from './run.ts';
import { buildDeployReader } from './tools.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const CHART = path.join(ROOT, 'deploy/helm/anabranch');
const image = readDockerfile();

/** What the tests read of manifests. */
// biome-ignore lint/suspicious/noExplicitAny: the Go program has checked the types, which are those of Kubernetes.
type Manifest = any;

let reader: string;
beforeAll(async () => {
  reader = await buildDeployReader();
}, 1_000_000);

async function read(...args: string[]) {
  return JSON.parse(await run(reader, args, { env: { POSTGRES_PASSWORD: '' } }));
}

async function render(values: object = {}) {
  const manifests: Manifest[] = await read('chart', CHART, JSON.stringify(values));
  const all = (kind: string) => manifests.filter((each) => each.kind === kind);
  return { manifests, all, one: (kind: string) => all(kind)[0] };
}

/** The default of a setting, as a number of seconds. */
const seconds = (key: Key) => Number((TABLE[key] as { default?: string }).default ?? 5);
const SQLITE = { database: { engine: 'sqlite' }, adminKey: { secret: 'admin' } };
const EVERYTHING = {
  database: { postgres: { directKey: 'direct' } },
  adminKey: { secret: 'admin' },
  autoscaling: { enabled: true },
  backup: { enabled: true, claim: 'backups' },
  env: [{ name: 'ANABRANCH_POOL_SIZE', value: '20' }],
  imagePullSecrets: [{ name: 'pull' }],
  metrics: {
    serviceMonitor: { enabled: true, labels: { release: 'prometheus' } },
    prometheusRule: { enabled: true, labels: { release: 'prometheus' } },
  },
  networkPolicy: { egress: [{ ports: [{ port: 5432 }] }], clients: [{ podSelector: {} }] },
  nodeSelector: { disk: 'fast' },
  podAnnotations: { a: 'b' },
  podLabels: { team: 'a' },
  tokens: { enabled: true, principals: [{ sub: 'system:serviceaccount:training:*', role: 'work', namespaces: ['a'] }] },
};

describe('the Helm chart', () => {
  it.each([
    ['Postgres', {}, ['Deployment', 'Job', 'NetworkPolicy', 'PodDisruptionBudget', 'Service', 'ServiceAccount']],
    ['SQLite', SQLITE, ['Deployment', 'NetworkPolicy', 'PersistentVolumeClaim', 'Service', 'ServiceAccount']],
    [
      'everything',
      EVERYTHING,
      [
        'ConfigMap',
        'CronJob',
        'Deployment',
        'HorizontalPodAutoscaler',
        'Job',
        'NetworkPolicy',
        'PodDisruptionBudget',
        'PrometheusRule',
        'Service',
        'ServiceAccount',
        'ServiceMonitor',
      ],
    ],
  ])('renders manifests that Kubernetes and the operator know strictly, with %s', async (_what, values, kinds) => {
    const { manifests } = await render(values);
    expect([...new Set(manifests.map(({ kind }) => kind))].sort()).toEqual(kinds);
    for (const { metadata } of manifests) expect(metadata.name).toMatch(/^anabranch/);
  });

  it.each([
    ['an unknown value', { replica: 3 }],
    ['an unknown engine', { database: { engine: 'mysql' } }],
    ['no certificate', { tls: { secret: '' } }],
    ['a backup without a claim', { backup: { enabled: true } }],
    ['tokens without principals', { tokens: { enabled: true } }],
    ['a longer drain than the server has', { drainSeconds: 31 }],
  ])('refuses %s', async (_what, values) => {
    await expect(render(values)).rejects.toThrow('[ERROR] values.yaml: - at');
  });

  it('has the defaults and bounds of the configuration table, and its port, probes and grace periods', async () => {
    const schema = JSON.parse(readFileSync(path.join(CHART, 'values.schema.json'), 'utf8')).properties;
    expect([schema.drainSeconds.minimum, schema.drainSeconds.maximum]).toEqual(TABLE.drainSeconds.bounds);
    expect(schema.logLevel.enum.join(', ')).toBe(TABLE.logLevel.expected.replace('one of ', ''));
    const { spec } = (await render()).one('Deployment').spec.template;
    const [container] = spec.containers;
    const flag = (name: string) => container.args.find((arg: string) => arg.startsWith(`--${name}=`))?.split('=')[1];
    expect(Number(flag('drain-seconds'))).toBe(seconds('drainSeconds'));
    expect(flag('log-level')).toBe(TABLE.logLevel.default);
    const [grace, lameDuck] = [spec.terminationGracePeriodSeconds, Number(flag('lame-duck'))];
    expect(grace).toBeGreaterThanOrEqual(lameDuck + seconds('drainSeconds') + 5);
    // A load balancer learns that an instance is not ready before it refuses calls.
    const { periodSeconds, failureThreshold } = container.readinessProbe;
    expect(periodSeconds * failureThreshold).toBeLessThanOrEqual(lameDuck);
    const [port, metrics] = image.ports;
    expect(container.ports.map((each: Manifest) => each.containerPort)).toEqual([port, metrics]);
    expect(flag('listen')).toBe(image.env.ANABRANCH_LISTEN);
    for (const [probe, target] of [
      ['startupProbe', '/livez'],
      ['livenessProbe', '/livez'],
      ['readinessProbe', '/readyz'],
    ])
      expect(container[probe!].httpGet).toEqual({ path: target, port: 'grpc', scheme: 'HTTPS' });
  });

  it.each([
    ['Postgres', {}],
    ['SQLite', SQLITE],
    ['everything', EVERYTHING],
    ['a mesh', { tls: { disabled: true } }],
  ])('starts the program with flags and variables that it has, with %s', async (_what, values) => {
    const { all } = await render(values);
    for (const { spec } of [...all('Deployment'), ...all('Job')]) {
      const [{ args, env = [] }] = spec.template.spec.containers;
      await expectKnown(args);
      const names = CONFIG_TABLE.map(({ name }) => name);
      for (const { name } of env) expect(names).toContain(name);
    }
  });

  it('fetches the keys of tokens where its own authority and token are valid, whoever the issuer is', async () => {
    const tokens = { ...EVERYTHING.tokens, issuer: 'https://oidc.example/id/1' };
    const { args, volumeMounts } = (await render({ tokens })).one('Deployment').spec.template.spec.containers[0];
    const { mountPath } = volumeMounts.find(({ name }: Manifest) => name === 'kube-api');
    for (const flag of [
      'jwt-issuer=https://oidc.example/id/1',
      'jwt-jwks=https://kubernetes.default.svc/openid/v1/jwks',
      `jwt-ca=${mountPath}/ca.crt`,
      `jwt-token-file=${mountPath}/token`,
    ])
      expect(args).toContain(`--${flag}`);
  });

  it('runs all containers without rights, on a root that is read-only, and mounts no password as an argument', async () => {
    for (const values of [EVERYTHING, { ...SQLITE, backup: { enabled: true, claim: 'backups' } }]) {
      const { all } = await render(values);
      const pods = [...all('Deployment'), ...all('Job')].map(({ spec }) => spec.template.spec);
      for (const pod of [...pods, ...all('CronJob').map(({ spec }) => spec.jobTemplate.spec.template.spec)]) {
        const [uid, gid] = image.user.split(':').map(Number);
        expect(pod.securityContext).toMatchObject({
          runAsNonRoot: true,
          runAsUser: uid,
          runAsGroup: gid,
          fsGroup: gid,
        });
        for (const { securityContext } of pod.containers)
          expect(securityContext).toMatchObject({
            readOnlyRootFilesystem: true,
            allowPrivilegeEscalation: false,
            capabilities: { drop: ['ALL'] },
          });
        expect(pod.automountServiceAccountToken).toBe(false);
        const volumes = new Set(pod.volumes.map(({ name }: Manifest) => name));
        for (const { volumeMounts } of pod.containers)
          for (const { name } of volumeMounts) expect([...volumes]).toContain(name);
        expect(JSON.stringify(pod)).not.toMatch(/postgres:\/\//);
      }
    }
  });

  it('keeps SQLite to one process, which mounts the folder of the file', async () => {
    const { one } = await render({ ...SQLITE, replicas: 3, autoscaling: { enabled: true } });
    const { spec } = one('Deployment');
    expect(spec).toMatchObject({ replicas: 1, strategy: { type: 'Recreate' } });
    const [{ args, volumeMounts }] = spec.template.spec.containers;
    expect(args).toContain('--database=sqlite:/data/data.db');
    expect(args).not.toContain('--no-migrate');
    expect(volumeMounts).toContainEqual({ name: 'data', mountPath: '/data' });
    expect(one('PersistentVolumeClaim').metadata.annotations).toEqual({ 'helm.sh/resource-policy': 'keep' });
  });

  it('migrates Postgres before the instances of an installation or an upgrade, which wait for it', async () => {
    const { one } = await render();
    const job = one('Job');
    expect(job.metadata.annotations['helm.sh/hook']).toBe('pre-install,pre-upgrade');
    expect(job.spec.template.spec.containers[0].args[0]).toBe('migrate');
    expect(one('Deployment').spec.template.spec.containers[0].args).toContain('--no-migrate');
    const alone = await render({ migration: { enabled: false } });
    expect(alone.one('Job')).toBeUndefined();
    expect(alone.one('Deployment').spec.template.spec.containers[0].args).not.toContain('--no-migrate');
    const sqlite = await render(SQLITE);
    const secondsToStart = [one, alone.one, sqlite.one].map((of) => {
      const { periodSeconds, failureThreshold } = of('Deployment').spec.template.spec.containers[0].startupProbe;
      return periodSeconds * failureThreshold;
    });
    // Who migrates does not listen before.
    expect(secondsToStart).toEqual([120, 3600, 3600]);
  });

  it('selects the same pods in every manifest, and ports by names that they have', async () => {
    const { one, all } = await render(EVERYTHING);
    const { spec } = one('Deployment');
    const { labels } = spec.template.metadata;
    const ports = spec.template.spec.containers[0].ports.map(({ name }: Manifest) => name);
    const selectors = [
      spec.selector.matchLabels,
      one('PodDisruptionBudget').spec.selector.matchLabels,
      one('NetworkPolicy').spec.podSelector.matchLabels,
      ...all('Service').map((service) => service.spec.selector),
    ];
    for (const selector of selectors) expect(labels).toMatchObject(selector);
    for (const service of all('Service'))
      for (const { targetPort } of service.spec.ports) expect(ports).toContain(targetPort);
    for (const rule of one('NetworkPolicy').spec.ingress) expect(ports).toContain(rule.ports[0].port);
    const monitor = one('ServiceMonitor').spec;
    const headless = all('Service').find((service) => service.spec.clusterIP === 'None');
    expect(headless.metadata.labels).toMatchObject(monitor.selector.matchLabels);
    expect(headless.spec.ports.map(({ name }: Manifest) => name)).toContain(monitor.endpoints[0].port);
    // Pods of a job are none of the server.
    expect(one('Job').spec.template.metadata.labels).not.toMatchObject(spec.selector.matchLabels);
  });

  it('pulls the images of all pods with the same secrets', async () => {
    for (const values of [EVERYTHING, { ...EVERYTHING, ...SQLITE }]) {
      const { all } = await render(values);
      const pods = [...all('Deployment'), ...all('Job'), ...all('CronJob').map(({ spec }) => spec.jobTemplate)];
      expect(pods.length).toBeGreaterThan(1);
      for (const { spec } of pods) expect(spec.template.spec.imagePullSecrets).toEqual(EVERYTHING.imagePullSecrets);
    }
  });

  it('admits the backup of SQLite beside the clients that a policy admits', async () => {
    const { one } = await render({ ...EVERYTHING, ...SQLITE });
    const { labels } = one('CronJob').spec.jobTemplate.spec.template.metadata;
    const admitted = [...EVERYTHING.networkPolicy.clients, { podSelector: { matchLabels: labels } }];
    expect(one('NetworkPolicy').spec.ingress[0].from).toEqual(admitted);
  });

  it.each([
    ['pg_dump', 'dump', {}],
    ['anabranch', 'db', SQLITE],
  ])('keeps the last backups of %s, and what another job writes', async (program, ending, values) => {
    const { one } = await render({ ...values, backup: { enabled: true, claim: 'backups', keep: 2 } });
    const [{ command }] = one('CronJob').spec.jobTemplate.spec.template.spec.containers;
    const folder = mkdtempSync(path.join(os.tmpdir(), 'backups-'));
    const old = ['20260101T030000Z', '20260102T030000Z', '20260103T030000Z'].map(
      (each) => `anabranch-${each}.${ending}`,
    );
    const [left, fresh] = [`anabranch-20260104T030000Z.${ending}.new`, `anabranch-20260105T030000Z.${ending}.new.part`];
    for (const name of [...old, left, fresh]) writeFileSync(path.join(folder, name), '');
    utimesSync(path.join(folder, left), 0, 0);
    mkdirSync(path.join(folder, 'bin'));
    const stub = `#!/bin/bash\ngrep -o '/[^= ]*/anabranch-[^ ]*' <<<"$*" | xargs touch\n`;
    writeFileSync(path.join(folder, 'bin', program), stub, { mode: 0o755 });
    const [shell, flags, script] = command;
    const PATH = `${path.join(folder, 'bin')}:${process.env.PATH}`;
    await run(shell, [flags, script.replaceAll('/backup', folder)], { env: { PATH, DATABASE_URL: 'postgres://db' } });
    const [made, ...rest] = readdirSync(folder)
      .filter((name) => name !== 'bin')
      .sort()
      .reverse();
    expect(made).toMatch(new RegExp(`^anabranch-\\d{8}T\\d{6}Z\\.${ending}$`));
    expect(rest).toEqual([fresh, old[2]]);
  });

  it('has all alerts as rules of the operator, with the labels by which it selects', async () => {
    const { one } = await render(EVERYTHING);
    expect(one('PrometheusRule').spec).toEqual(parse(readFileSync(RULES_FILE, 'utf8')));
    for (const kind of ['PrometheusRule', 'ServiceMonitor'])
      expect(one(kind).metadata.labels.release).toBe('prometheus');
  });

  it('has the version of package.json', async () => {
    const { version } = JSON.parse(readFileSync(path.join(ROOT, 'package.json'), 'utf8'));
    const chart = readFileSync(path.join(CHART, 'Chart.yaml'), 'utf8');
    expect(chart).toContain(`\nversion: ${version}\nappVersion: ${version}\n`);
  });
});

describe('the example of workers', () => {
  it('is known to Kubernetes, and sends the token and the certificate that it mounts', async () => {
    const manifests: Manifest[] = await read('manifests', path.join(ROOT, 'deploy/kubernetes/worker.yaml'));
    const { spec } = manifests.find(({ kind }) => kind === 'Deployment').spec.template;
    const [{ env, volumeMounts }] = spec.containers;
    const paths = spec.volumes[0].projected.sources.flatMap(({ serviceAccountToken, secret }: Manifest) =>
      serviceAccountToken ? serviceAccountToken.path : secret.items.map((item: Manifest) => item.path),
    );
    const files = env.filter(({ name }: Manifest) => name.endsWith('_FILE')).map(({ value }: Manifest) => value);
    expect(files.sort()).toEqual(paths.map((file: string) => `${volumeMounts[0].mountPath}/${file}`).sort());
    expect(spec.volumes[0].projected.sources[0].serviceAccountToken.audience).toBe(TABLE.jwtAudience.default);
  });

  it('refuses a field that Kubernetes does not know', async () => {
    const text = readFileSync(path.join(ROOT, 'deploy/kubernetes/worker.yaml'), 'utf8');
    const file = path.join(mkdtempSync(path.join(os.tmpdir(), 'manifest-')), 'wrong.yaml');
    writeFileSync(file, text.replace('automountServiceAccountToken', 'automountServiceAccountTokens'));
    await expect(read('manifests', file)).rejects.toThrow('unknown field');
  });
});

describe('the pods that restore', () => {
  const mounted = ({ containers: [container], volumes, securityContext }: Manifest) => {
    const { image: program, volumeMounts, securityContext: rights } = container;
    return { program, volumeMounts, rights, volumes, securityContext };
  };
  const podOf = async (file: string) =>
    (await read('manifests', path.join(ROOT, 'deploy/kubernetes', file))).find(({ kind }: Manifest) => kind === 'Pod');

  it('mount what the job of the chart writes, as the same user', async () => {
    const { one } = await render(EVERYTHING);
    const job = one('CronJob').spec.jobTemplate.spec.template.spec;
    expect(mounted((await podOf('restore.yaml')).spec)).toEqual(mounted(job));
  });

  it('mount a new volume where the server on SQLite has its own', async () => {
    const { one } = await render({
      database: { engine: 'sqlite', sqlite: { claim: 'restored' } },
      adminKey: { secret: 'admin' },
      image: { repository: 'registry.example/anabranch' },
    });
    const server = mounted(one('Deployment').spec.template.spec);
    const pod = mounted((await podOf('restore-sqlite.yaml')).spec);
    const postgres = mounted((await podOf('restore.yaml')).spec);
    const data = ({ name }: Manifest) => name === 'data';
    expect(pod).toEqual({
      ...postgres,
      program: server.program,
      volumeMounts: [...postgres.volumeMounts, ...server.volumeMounts.filter(data)],
      volumes: [...postgres.volumes, ...server.volumes.filter(data)],
    });
  });
});

describe('docker-compose.yml', () => {
  const FILE = path.join(ROOT, 'docker-compose.yml');

  it('starts the server on Postgres, and more with profiles', async () => {
    const services = async (...profiles: string[]) =>
      Object.keys((await read('compose', FILE, ...profiles)).services).sort();
    expect(await services()).toEqual(['anabranch', 'db', 'secrets']);
    const all = ['anabranch', 'balancer', 'db', 'grafana', 'pgadmin', 'prometheus', 'second', 'secrets'];
    expect(await services('balanced', 'metrics', 'tools')).toEqual(all);
  });

  it('gives the servers settings that they have, and time to stop', async () => {
    const { services } = await read('compose', FILE, 'balanced');
    for (const name of ['anabranch', 'second']) {
      const service = services[name];
      for (const setting of Object.keys(service.environment).filter((each) => each !== 'PGPASSFILE'))
        expect(CONFIG_TABLE.map((row) => row.name)).toContain(setting);
      const grace = Number(/^(\d+)s$/.exec(service.stop_grace_period)?.[1]);
      expect(grace).toBeGreaterThanOrEqual(5 + seconds('drainSeconds') + 5);
      expect(service).toMatchObject({ read_only: true, cap_drop: ['ALL'] });
      expect(service.healthcheck, 'is that of the image').toBeUndefined();
    }
    expect(services.anabranch.ports[0]).toMatchObject({ target: image.ports[0], host_ip: '127.0.0.1' });
  });

  it('publishes ports on loopback only', async () => {
    const { services } = await read('compose', FILE, 'balanced', 'metrics', 'tools');
    for (const { ports = [] } of Object.values<Manifest>(services))
      for (const port of ports) expect(port.host_ip).toBe('127.0.0.1');
  });

  it('names files that exist', async () => {
    const { services, configs } = await read('compose', FILE, 'balanced', 'metrics', 'tools');
    const mounted = Object.values<Manifest>(services).flatMap(({ volumes = [] }) =>
      volumes.filter(({ type }: Manifest) => type === 'bind').map(({ source }: Manifest) => source),
    );
    const files = Object.values<Manifest>(configs).flatMap(({ file }) => file ?? []);
    for (const file of [...files, ...mounted]) expect(existsSync(file), file).toBe(true);
  });
});
