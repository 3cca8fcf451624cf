import { STATEMENT_SECONDS, type StatementTime } from '../../contract/load.ts';
import { TABLES } from './tables.ts';

/** Texts whose names are remembered. Others are named again each time. */
const MOST_TEXTS = 1000;
const VERBS: ReadonlySet<string> = new Set([
  'begin',
  'commit',
  'rollback',
  'select',
  'insert',
  'update',
  'delete',
  'copy',
]);
const WRITE = /\b(insert into|update|delete from|copy)\s+(?:"?\w+"?\.)?"?(\w+)"?/g;
const SOURCE = /\bfrom\s+(?:"?\w+"?\.)?"?(\w+)"?/g;

/** The durations of statements, by verb and table. */
export class StatementTimes {
  readonly #byText = new Map<string, Durations>();
  readonly #byName = new Map<string, Durations>();

  get all(): readonly StatementTime[] {
    return [...this.#byName.values()];
  }

  note(text: string, milliseconds: number): void {
    (this.#byText.get(text) ?? this.of(text)).note(milliseconds);
  }

  /** Returns where durations of this statement are noted. */
  of(text: string): Durations {
    const name = nameOf(text);
    const durations = this.#byName.get(name) ?? new Durations(name);
    this.#byName.set(name, durations);
    if (this.#byText.size < MOST_TEXTS) this.#byText.set(text, durations);
    return durations;
  }
}

export class Durations implements StatementTime {
  readonly name: string;
  readonly buckets: number[] = STATEMENT_SECONDS.map(() => 0);
  count = 0;
  seconds = 0;

  constructor(name: string) {
    this.name = name;
  }

  note(milliseconds: number): void {
    const seconds = milliseconds / 1000;
    this.count += 1;
    this.seconds += seconds;
    for (let i = 0; i < STATEMENT_SECONDS.length; i += 1) {
      if (seconds > STATEMENT_SECONDS[i]!) continue;
      this.buckets[i]! += 1;
      return;
    }
  }
}

/** Returns `insert segments`, `commit`, or `other`. The first of several written tables counts. */
export function nameOf(text: string): string {
  const [, verb = ''] = /^[\s(]*(\w+)/.exec(text.toLowerCase()) ?? [];
  if (verb === 'start' || verb === 'reset') return 'begin';
  const lower = text.slice(0, 20_000).toLowerCase();
  if (verb === 'with' || verb === 'insert' || verb === 'update' || verb === 'delete' || verb === 'copy') {
    for (const [, write = '', table = ''] of lower.matchAll(WRITE)) {
      if (Object.hasOwn(TABLES, table)) return `${write.split(' ')[0]} ${table}`;
    }
  }
  if (verb === 'with' || verb === 'select') {
    for (const [, table = ''] of lower.matchAll(SOURCE)) if (Object.hasOwn(TABLES, table)) return `select ${table}`;
    return 'select';
  }
  return VERBS.has(verb) ? verb : 'other';
}
