/** Runs what the Dockerfile says, without a container runtime: its command as a process with its own root. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { chown, copyFile, cp, mkdir, mkdtemp, readFile, rm, symlink } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { run } from '../languages/run.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

/** The last stage of the Dockerfile, and the version of Node of all stages. */
export interface ImageConfig {
  readonly nodeVersion: string;
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly folder: string;
  readonly ports: readonly number[];
  readonly command: readonly string[];
  readonly healthCheck: readonly string[];
  /** The arguments of the last `npm ci`. */
  readonly install: readonly string[];
}

export function readDockerfile(): ImageConfig {
  const text = readFileSync(path.join(ROOT, 'Dockerfile'), 'utf8').replaceAll('\\\n', ' ');
  const last = text.slice(text.lastIndexOf('\nFROM '));
  const words = (instruction: string) => new RegExp(`^${instruction} (.*)$`, 'm').exec(last)?.[1]?.trim() ?? '';
  return {
    nodeVersion: /^ARG NODE_VERSION=(\S+)$/m.exec(text)?.[1] ?? '',
    env: Object.fromEntries(
      words('ENV')
        .split(/\s+/)
        .map((each) => each.split('=') as [string, string]),
    ),
    user: words('USER'),
    folder: words('WORKDIR'),
    ports: words('EXPOSE').split(' ').map(Number),
    command: [...JSON.parse(words('ENTRYPOINT')), ...JSON.parse(words('CMD'))],
    healthCheck: JSON.parse(/ CMD (\[.*\])$/.exec(words('HEALTHCHECK'))?.[1] ?? '[]'),
    install: [...text.matchAll(/npm (ci [^&\n]*)/g)].at(-1)![1]!.trim().split(' '),
  };
}

/**
 * Enters a root of its own, of which only /data, /secrets and /tmp can be written, and drops all rights but those of a
 * user. The system (/usr, /etc) is that of this machine.
 */
const ENTER = `set -e
root=$1 user=$2 folder=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
for part in usr etc; do mount --bind /$part "$root/$part"; mount -o remount,ro,bind "$root/$part"; done
mount --bind "$root.bin" "$root/usr/local/bin"
mount -o remount,ro,bind "$root"
for part in data secrets; do mount --bind "$root.$part" "$root/$part"; done
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" setpriv --reuid="\${user%:*}" --regid="\${user#*:}" --clear-groups --no-new-privs \\
  --bounding-set=-all --inh-caps=-all env -i -C "$folder" PATH=/usr/local/bin:/usr/bin "$@"`;

export interface RunningImage {
  /** The process of the command, which is process 1 of its own namespace. */
  readonly pid: number;
  output(): string;
  /** Resolves when the output has a text. Rejects if the process ends before. */
  shows(text: string): Promise<void>;
  /** Sends a signal. Resolves with the exit code. */
  end(signal: NodeJS.Signals): Promise<number | null>;
}

export class Image {
  readonly config = readDockerfile();
  readonly #root: string;

  private constructor(root: string) {
    this.#root = root;
  }

  /** Makes the files of the image as its stages do, with the dependencies of this checkout for the build. */
  static async build(): Promise<Image> {
    const root = path.join(await mkdtemp(path.join(os.tmpdir(), 'anabranch-image-')), 'root');
    const image = new Image(root);
    const app = path.join(root, 'app');
    for (const part of ['usr', 'etc', 'data', 'secrets', 'tmp', 'proc', 'dev', 'app'])
      await mkdir(path.join(root, part), { recursive: true });
    for (const part of ['bin', 'lib', 'lib64']) await cp(`/${part}`, path.join(root, part), { verbatimSymlinks: true });
    for (const part of ['bin', 'data', 'secrets']) await mkdir(`${root}.${part}`, { mode: 0o755 });
    const [uid, gid] = image.config.user.split(':').map(Number);
    await chown(`${root}.data`, uid!, gid!);
    await copyFile(process.execPath, `${root}.bin/node`);
    for (const file of ['package.json', 'package-lock.json', '.npmrc'])
      await copyFile(path.join(ROOT, file), path.join(app, file));
    await run('npm', [...image.config.install, '--prefer-offline', '--no-audit'], { cwd: app, minutes: 10 });
    const sources = path.join(path.dirname(root), 'src');
    await copyContext(sources);
    await symlink(path.join(ROOT, 'node_modules'), path.join(sources, 'node_modules'));
    await run('npm', ['run', 'build'], { cwd: sources, minutes: 5 });
    for (const part of ['bin', 'dist']) await cp(path.join(sources, part), path.join(app, part), { recursive: true });
    await symlink('/app/bin/anabranch.js', `${root}.bin/anabranch`);
    return image;
  }

  /** The folder that is mounted there: `data` or `secrets`. */
  folder(name: 'data' | 'secrets'): string {
    return `${this.#root}.${name}`;
  }

  /** Starts a command. Default: that of the image. */
  start(env: Readonly<Record<string, string>> = {}, command = this.config.command): RunningImage {
    const { user, folder } = this.config;
    const settings = Object.entries({ ...this.config.env, ...env }).map(([name, value]) => `${name}=${value}`);
    const namespace = ['--mount', '--pid', '--fork', '--kill-child'];
    const args = [...namespace, 'sh', '-c', ENTER, 'sh', this.#root, user, folder, ...settings, ...command];
    return running(spawn('unshare', args, { stdio: ['ignore', 'pipe', 'pipe'] }));
  }

  /** Runs a command to its end. */
  async run(env: Readonly<Record<string, string>>, command: readonly string[]) {
    const process_ = this.start(env, command);
    return { code: await process_.end('SIGCONT'), output: process_.output() };
  }

  async remove(): Promise<void> {
    await rm(path.dirname(this.#root), { recursive: true, force: true });
  }
}

/** Copies the files that git has and .dockerignore names. */
async function copyContext(to: string): Promise<void> {
  const ignore = await readFile(path.join(ROOT, '.dockerignore'), 'utf8');
  const named = [...ignore.matchAll(/^!(.+)$/gm)].map(([, name]) => name!);
  const list = await run('git', ['ls-files', '-z', '--', ...named], { cwd: ROOT });
  for (const file of list.split('\0').filter((name) => name !== ''))
    await cp(path.join(ROOT, file), path.join(to, file), { verbatimSymlinks: true });
}

function running(child: ChildProcess): RunningImage {
  let text = '';
  const changed = new Set<() => void>();
  for (const stream of [child.stdout!, child.stderr!])
    stream.on('data', (chunk: Buffer) => {
      text += chunk;
      for (const tell of changed) tell();
    });
  const exited = once(child, 'close') as Promise<[number | null]>;
  return {
    get pid() {
      return Number(readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim());
    },
    output: () => text,
    shows: async (wanted) => {
      const shown = new Promise<void>((resolve) => {
        const tell = () => text.includes(wanted) && resolve();
        changed.add(tell);
        tell();
      });
      const ended = exited.then(([code]) => Promise.reject(new Error(`ended with code ${code}:\n${text}`)));
      await Promise.race([shown, ended]);
    },
    async end(signal) {
      if (signal !== 'SIGCONT') process.kill(this.pid, signal);
      return (await exited)[0];
    },
  };
}

/** The fields of `/proc/PID/status`. */
export async function statusOf(pid: number): Promise<Record<string, string>> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8');
  return Object.fromEntries(text.split('\n').map((line) => line.split(/:\s+/) as [string, string]));
}
