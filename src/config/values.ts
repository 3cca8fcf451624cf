import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { z } from 'zod';
import { mayHoldPassword, schemeOf } from './scrub_url.ts';
import { type ConfigRow, type Key, type NumberKey, TABLE } from './table.ts';

/** Flags by name, such as commander's options. Names that are not in CONFIG_TABLE are ignored. */
export type ConfigFlags = Readonly<Record<string, unknown>>;

export interface ConfigSources {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly flags: ConfigFlags;
  /** Directory of `.env`, and base of relative SQLite paths. */
  readonly cwd: string;
  /** Reads a text file. Returns undefined if the file does not exist. */
  readonly readFile?: (path: string) => string | undefined;
  /** Returns how many files the process may have open at once. Undefined if unknown. */
  readonly fileLimit?: () => number | undefined;
}

/** A setting is invalid. The message is for the person who set it. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** The values of all settings, with the flag or variable that set them. */
export class Values {
  readonly #ofProcess: Readonly<Record<string, string | undefined>>;
  readonly #env: Readonly<Record<string, string | undefined>>;
  readonly #flags: ConfigFlags;

  constructor({ env, flags, cwd, readFile = readTextFile }: ConfigSources) {
    this.#ofProcess = env;
    this.#env = { ...readDotEnv(join(cwd, '.env'), readFile, env), ...env };
    this.#flags = flags;
  }

  flag(key: Key): string | undefined {
    const value = this.#flags[flagKey(TABLE[key])];
    return value === undefined || value === null ? undefined : String(value);
  }

  env(key: Key): string | undefined {
    return this.#env[TABLE[key].name] || undefined;
  }

  /** Returns the variable's name, marked if the `.env` file set it. */
  origin(key: Key): string {
    const { name } = TABLE[key];
    return this.#ofProcess[name] === undefined ? `${name} (.env)` : name;
  }

  /** Returns the text of the flag, else of the variable, else the default. */
  text(key: Key): string {
    const row: ConfigRow = TABLE[key];
    return this.flag(key) ?? this.env(key) ?? row.default ?? '';
  }

  whole(key: NumberKey): number {
    const [from, to] = TABLE[key].bounds;
    const digits = z.string().regex(/^\d+$/u);
    return this.#parse(key, digits.transform(Number).pipe(z.int().min(from).max(to)));
  }

  bool(key: Key): boolean {
    return this.#parse(key, z.stringbool({ truthy: ['true', '1', 'yes'], falsy: ['false', '0', 'no'] }));
  }

  choice<const T extends readonly string[]>(key: Key, values: T): T[number] {
    return this.#parse(key, z.enum(values));
  }

  isSet(key: Key): boolean {
    return (this.flag(key) ?? this.env(key)) !== undefined;
  }

  /** Parses a list. `parse` returns undefined for an invalid value. */
  list(key: Key, parse: (text: string) => string | undefined): string[] {
    const whole = this.text(key);
    return whole.split(',').flatMap((text) => {
      if (text.trim() === '') return [];
      const value = parse(text.trim());
      if (value === undefined) throw this.#invalid(key, mayHoldPassword(whole) ? whole : text.trim());
      return [value];
    });
  }

  /** Returns the name of the flag or variable that set the value. */
  nameOf(key: Key): string {
    return this.flag(key) === undefined ? TABLE[key].name : this.flagOf(key);
  }

  /** Returns the flag of a setting, or its variable if it has no flag. */
  flagOf(key: Key): string {
    const row: ConfigRow = TABLE[key];
    return row.flag?.split(' ')[0] ?? row.name;
  }

  /**
   * Returns `--listen is "0.0.0.0": expected …`. The value of a secret is left out, and of a database URL everything
   * but the scheme: where its password begins is unknown.
   */
  error(key: Key, expected: string = TABLE[key].expected): ConfigError {
    return this.#invalid(key, this.text(key), expected);
  }

  #invalid(key: Key, text: string, expected: string = TABLE[key].expected): ConfigError {
    const shown = key === 'database' ? shownUrl(text) : this.#isSecret(key, text) ? 'is invalid' : `is "${text}"`;
    return new ConfigError(`${this.nameOf(key)} ${shown}: expected ${expected}.`);
  }

  #isSecret(key: Key, text: string): boolean {
    const row: ConfigRow = TABLE[key];
    return row.secret === true || mayHoldPassword(text);
  }

  #parse<T>(key: Key, schema: z.ZodType<T>): T {
    const result = schema.safeParse(this.text(key).trim());
    if (!result.success) throw this.error(key);
    return result.data;
  }
}

function shownUrl(text: string): string {
  const scheme = schemeOf(text);
  if (text.trim() === '') return 'is empty';
  return scheme === '' ? 'is not a database URL (not shown: it may hold a password)' : `begins with "${scheme}"`;
}

function readDotEnv(
  path: string,
  readFile: (path: string) => string | undefined,
  env: ConfigSources['env'],
): NodeJS.Dict<string> {
  try {
    const text = readFile(path) ?? '';
    refuseCutSecrets(text, env);
    return parseEnv(text);
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    throw new ConfigError(`${path} cannot be read (${reasonOf(error)}): expected a readable .env file, or none.`, {
      cause: error,
    });
  }
}

const SECRETS = new Set(Object.values<ConfigRow>(TABLE).flatMap(({ name, secret }) => (secret ? name : [])));

/** A value of `.env` that continues after a `#` within a word, where a comment begins, or after its closing quote. */
const CUT =
  /^\s*(?:export\s+)?(\w+)\s*=[^\S\n]*(?:[^'"`\s#](?:[^\n#]*[^\s#])?#|(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`)(?:\S|[^\S\n]+[^\s#]))/gmu;

/** What is left of a URL could be valid, with a part of the password as its database. */
function refuseCutSecrets(text: string, env: ConfigSources['env']): void {
  for (const [, name = ''] of text.matchAll(CUT)) {
    if (!SECRETS.has(name) || env[name] !== undefined) continue;
    throw new ConfigError(
      `${name} (.env) is cut at a # or a quote in its value: put the value into quotes that it does not contain, and in a URL write # as %23.`,
    );
  }
}

function readTextFile(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw error;
  }
}

function reasonOf(error: unknown): string {
  if (error instanceof Error) return 'code' in error ? String(error.code) : error.message;
  return String(error);
}

/** Returns the name that commander gives a flag: `--log-level LEVEL` → `logLevel`. */
function flagKey(row: ConfigRow): string {
  const long = row.flag?.split(' ')[0]?.slice(2) ?? '';
  return long.replace(/-(\w)/gu, (_, letter: string) => letter.toUpperCase());
}
