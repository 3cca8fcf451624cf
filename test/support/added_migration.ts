/** A migration of a later version: these tests are about the machinery, while the schema has its first version only. */
import { type Kysely, sql } from 'kysely';
import type { ConversionProgress, Migration } from '../../src/store/migrations/migration.ts';
import { MIGRATIONS } from '../../src/store/migrations/migrations.ts';

/** Adds a migration to those of this process, until the returned object is disposed. */
export function addMigration(migration: Migration): Disposable {
  const all = MIGRATIONS as Migration[];
  all.push(migration);
  return { [Symbol.dispose]: () => void all.splice(all.indexOf(migration), 1) };
}

/** Steps that one transaction converts. */
export const CONVERTED_AT_ONCE = 25n;

const STATEMENTS = `
create table step_texts (
  step_number bigint primary key,
  text text not null
);
create table converting_steps (
  next bigint not null
);
insert into converting_steps (next) values (0);
`;

/** Hooks of a test, which may throw, or end the process. */
export interface Hooks {
  /** In the transaction of the statements, before the last one. */
  readonly onStatements?: () => void;
  /** In each transaction of the conversion, after its changes. */
  readonly onConverted?: (progress: ConversionProgress) => void;
}

/** Writes a row of 1,500 bytes for each step. The database must have one trajectory. */
export function convertSteps({ onStatements, onConverted }: Hooks = {}): Migration {
  const statements = onStatements === undefined ? STATEMENTS : interrupted(STATEMENTS, onStatements);
  return {
    name: '9001_step_texts',
    postgres: statements,
    sqlite: statements,
    conversion: {
      progressTable: 'converting_steps',
      async convertSome<T>(tx: Kysely<T>) {
        const { rows } = await sql<{ next: bigint | string; total: bigint | string }>`
          select next, (select count(*) from steps) as total from converting_steps`.execute(tx);
        const [next, total] = [BigInt(rows[0]!.next), BigInt(rows[0]!.total)];
        if (next >= total) return undefined;
        const done = next + CONVERTED_AT_ONCE < total ? next + CONVERTED_AT_ONCE : total;
        await sql`insert into step_texts (step_number, text)
          select step_number, ${'x'.repeat(1500)} from steps where step_number >= ${next} and step_number < ${done}`.execute(
          tx,
        );
        await sql`update converting_steps set next = ${done}`.execute(tx);
        const progress = { rows: 'steps', done, total };
        onConverted?.(progress);
        return progress;
      },
    },
  };
}

/** Returns a text that calls the hook when all its statements but the last one ran. */
function interrupted(text: string, hook: () => void): string {
  const split = function* (separator: RegExp) {
    const statements = text.split(separator);
    yield* statements.slice(0, -1);
    hook();
    yield statements.at(-1)!;
  };
  return Object.assign(Object(text) as object, { split }) as unknown as string;
}
