import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { describe, expect, it } from 'vitest';
import { programOf, readSnippets } from '../docs/snippets.ts';
import { run } from './run.ts';
import { CARGO_TARGET, compileOnce, PROTOC_BIN } from './tools.ts';

const PROTOS = path.resolve(import.meta.dirname, '../../gen/proto');
/** Cargo and Maven download and compile their dependencies the first time. */
const MINUTES = 15;
/** A JVM that ends soon optimises little and collects garbage in one thread: javac then takes half of the CPU time. */
const SHORT_LIVED_JVM = '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC';

/** The languages, and how each says its version, on which the outcome depends. */
const LANGUAGES = [
  { language: 'python', version: ['python', '--version'] },
  { language: 'go', version: ['go', 'version'] },
  { language: 'rust', version: ['cargo', '--version', '--verbose'] },
  { language: 'java', version: ['mvn', '--version'] },
] as const;

/** Returns the names and contents of the protos. */
async function protos(): Promise<string[]> {
  const files = (await readdir(PROTOS, { recursive: true })).filter((name) => name.endsWith('.proto')).sort();
  const contents = await Promise.all(files.map((name) => readFile(path.join(PROTOS, name), 'utf8')));
  return files.flatMap((name, i) => [name, contents[i]!]);
}

describe('the commands of docs/clients.md', () => {
  it.each(LANGUAGES)(
    'generate stubs that compile, from protoc and gen/proto alone: $language',
    async ({ language, version: [program, ...args] }) => {
      const commands = programOf(readSnippets('docs/clients.md'), language);
      const inputs = [commands, await readFile(path.join(PROTOC_BIN, 'protoc'), 'utf8'), ...(await protos())];
      await compileOnce(language, [await run(program, args), ...inputs], async () => {
        const folder = await mkdtemp(path.join(os.tmpdir(), `anabranch-stubs-${language}-`));
        const goBin = path.join(folder, 'bin');
        const env = {
          PROTOS,
          PATH: [PROTOC_BIN, goBin, process.env.PATH].join(path.delimiter),
          GOBIN: goBin,
          CARGO_TARGET_DIR: CARGO_TARGET,
          MAVEN_OPTS: SHORT_LIVED_JVM,
        };
        await expect(
          run('bash', ['-euo', 'pipefail', '-c', commands], { cwd: folder, env, minutes: MINUTES }),
        ).resolves.toBeTypeOf('string');
        // Compiled packages stay for the next run; the stubs are compiled anew by each.
        if (language === 'rust') await run('cargo', ['clean', '--package', 'agent'], { cwd: folder, env });
        await rm(folder, { recursive: true, force: true });
      });
    },
    MINUTES * 60_000,
  );
});
