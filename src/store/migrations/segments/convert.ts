import { type Kysely, sql } from 'kysely';
import type { ConversionProgress } from '../migration.ts';
import type { ConversionRow } from './conversion_table.ts';
import { convertSteps } from './convert_steps.ts';
import { copyChunks, copyOtherStates } from './former_states.ts';

/**
 * Converts the next rows of the tables `former_…`. Steps take the states along that they name, so that the row keys of
 * states are in the order of their references.
 */
export async function convertSome<T>(
  db: Kysely<T>,
  engine: 'postgres' | 'sqlite',
): Promise<ConversionProgress | undefined> {
  const { rows } = await sql<ConversionRow>`select * from conversion`.execute(db);
  const at = rows[0]!;
  const chunks = engine === 'sqlite' ? await copyChunks(db, at) : undefined;
  return chunks ?? (await convertSteps(db, at)) ?? (await copyOtherStates(db, at));
}
