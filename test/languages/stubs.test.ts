import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { describe, expect, it } from 'vitest';
import { programOf, readSnippets } from '../docs/snippets.ts';
import { run } from './run.ts';
import { CARGO_TARGET, GO_BIN, PROTOC_BIN } from './tools.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
/** Cargo and Maven download and compile their dependencies the first time. */
const MINUTES = 15;
/** A JVM that ends soon optimises little and collects garbage in one thread: javac then takes half of the CPU time. */
const SHORT_LIVED_JVM = '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC';

describe('the commands of docs/clients.md', () => {
  it.each(['python', 'go', 'rust', 'java'])(
    'generate stubs that compile, from protoc and gen/proto alone: %s',
    async (language) => {
      const commands = programOf(readSnippets('docs/clients.md'), language);
      const folder = await mkdtemp(path.join(os.tmpdir(), `anabranch-stubs-${language}-`));
      const env = {
        PROTOS: path.join(ROOT, 'gen/proto'),
        PATH: [PROTOC_BIN, GO_BIN, process.env.PATH].join(path.delimiter),
        GOBIN: GO_BIN,
        CARGO_TARGET_DIR: CARGO_TARGET,
        MAVEN_OPTS: SHORT_LIVED_JVM,
      };
      await expect(
        run('bash', ['-euo', 'pipefail', '-c', commands], { cwd: folder, env, minutes: MINUTES }),
      ).resolves.toBeTypeOf('string');
      // Compiled packages stay for the next run; the stubs are compiled anew by each.
      if (language === 'rust') await run('cargo', ['clean', '--package', 'agent'], { cwd: folder, env });
      await rm(folder, { recursive: true, force: true });
    },
    MINUTES * 60_000,
  );
});
