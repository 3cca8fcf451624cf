import type { TestDatabase } from '../../support/database.ts';
import { asOwner } from './connections.ts';

/**
 * Makes commits of steps return before they are on the disk. The server refuses such a setting of the database whenever
 * it connects, so each transaction is changed from inside.
 */
export function commitWithoutWaiting(database: TestDatabase): Promise<unknown> {
  return asOwner(database, (client) =>
    client.query(`
      create function public.commit_without_waiting() returns trigger language plpgsql as
        $$ begin perform set_config('synchronous_commit', 'off', true); return null; end $$;
      create trigger commit_without_waiting after insert on anabranch.segments
        for each statement execute function public.commit_without_waiting();
      grant execute on function public.commit_without_waiting() to public`),
  );
}
