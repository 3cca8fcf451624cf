/**
 * Reads command lines of docker by its own reference: the tables of flags that docker, buildx and compose print of
 * themselves, and the lines of usage in their sources. To compile these programs would take minutes.
 */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { run } from './run.ts';

interface Program {
  readonly folder: string;
  /** Where the flags of the program itself are, of its command VERB, and its line of usage. */
  readonly flags: string;
  readonly verbFlags: string;
  readonly usage: string;
}

export interface Docker {
  /** Throws if docker would refuse the words after `docker`: a command or a flag is unknown, or an argument lacks. */
  read(words: readonly string[]): void;
}

/** Downloads the references, unless some checkout has. Go's checksum database verifies them. */
export async function dockerReference(): Promise<Docker> {
  const folder = async (module: string): Promise<string> =>
    JSON.parse(await run('go', ['mod', 'download', '-json', module], { minutes: 5 })).Dir;
  const docker: Program = {
    folder: await folder('github.com/docker/cli@v29.9.3+incompatible'),
    flags: 'docs/reference/commandline/docker.md',
    verbFlags: 'docs/reference/commandline/VERB.md',
    usage: 'cli/command/{image,container}/VERB.go',
  };
  const buildx: Program = {
    folder: await folder('github.com/docker/buildx@v0.38.2'),
    flags: 'docs/reference/buildx.md',
    verbFlags: 'docs/reference/buildx_VERB.md',
    usage: 'commands/VERB.go',
  };
  const compose: Program = {
    folder: await folder('github.com/docker/compose/v5@v5.6.0'),
    flags: 'docs/reference/compose.md',
    verbFlags: 'docs/reference/compose_VERB.md',
    usage: 'cmd/compose/VERB.go',
  };
  return {
    read([command = '', ...rest]) {
      if (command === 'compose') readWords(compose, rest);
      else if (command === 'buildx') readWords(buildx, rest);
      // `docker build` is that of buildx.
      else readWords(command === 'build' ? buildx : docker, [command, ...rest]);
    },
  };
}

function readWords(program: Program, words: readonly string[]): void {
  const [verb = '', ...rest] = argumentsOf(words, flagsOf(program, program.flags), true);
  const flags = flagsOf(program, program.verbFlags.replace('VERB', verb));
  const usage = usageOf(program, verb);
  // Behind the first argument of such a command, flags are those of another one.
  const given = argumentsOf(rest, flags, /\[ARGS?\.\.\.\]/u.test(usage));
  const required = usage.replace(/\[[^\]]*\.\.\.\]|(?<= )\[\S+\]/gu, '').replace(/ ?\| ?\S+/gu, '');
  const needed = required.split(' ').filter((word) => word !== '').length;
  if (given.length < needed || (given.length > needed && !/ \[(?!OPTIONS)/u.test(` ${usage}`)))
    throw new Error(`docker … ${verb} has the arguments "${usage}", got "${given.join(' ')}"`);
}

/** Flags with and without hyphens, and whether each takes a value. */
function flagsOf({ folder }: Program, file: string): Map<string, boolean> {
  const text = readFileSync(path.join(folder, file), 'utf8');
  const rows = text.matchAll(/^\| (?<names>[^|]*`-[^|]*)\| *(?<type>[^|]*?) *\|/gmu);
  return new Map(
    [...rows].flatMap(({ groups }) =>
      [...groups!.names!.matchAll(/`(-[^`]+)`/gu)].map(([, name]): [string, boolean] => [
        name!,
        !['', '`bool`'].includes(groups!.type!),
      ]),
    ),
  );
}

/** The arguments of a command, without its options: `SERVICE COMMAND [ARGS...]`. */
function usageOf({ folder, usage }: Program, verb: string): string {
  const [file = ''] = globSync(usage.replace('VERB', verb), { cwd: folder });
  const source = readFileSync(path.join(folder, file), 'utf8');
  const found = new RegExp(`Use:\\s+["\`]${verb}(?: \\[OPTIONS\\])? ?([^"\\n]*)`, 'u').exec(source);
  if (found === null) throw new Error(`${file} has no usage of ${verb}`);
  return found[1]!;
}

/** The words that are no flags and no values of flags. Throws if a flag is unknown. */
function argumentsOf(words: readonly string[], flags: Map<string, boolean>, stopAtFirst: boolean): string[] {
  const found: string[] = [];
  for (let i = 0; i < words.length; i += 1) {
    const word = words[i]!;
    if (!/^-./u.test(word)) {
      if (stopAtFirst) return [...found, ...words.slice(i)];
      found.push(word);
      continue;
    }
    const [flag = '', value] = word.split('=', 2);
    const takesValue = flags.get(flag);
    if (takesValue === undefined) throw new Error(`unknown flag: ${flag}`);
    if (!takesValue || value !== undefined) continue;
    i += 1;
    if (i === words.length) throw new Error(`${flag} needs a value`);
  }
  return found;
}
