import { expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { outsideSql } from './sql.ts';

it.each(ENGINES)(
  'M4: the migration keeps the effective configs, and existing runs have no removed paths, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const here = new RunScene(store);
    const { id } = await here.experiment({ defaultConfigJson: '{"lr":1}' });
    const run = await here.makeRun({ experiment: { id }, configJson: '{"wandb_project":null}' });
    await store.close();

    // As JSON Merge Patch computed it.
    const configJson = '{"lr":1}';
    const sql = await outsideSql(database);
    await sql.rows(`update runs set config_json = '${configJson}'`);
    await undoMigrations(sql, '0015_removed_config_paths');
    await sql.close();

    const again = await openOn(database);
    const migrated = await new RunScene(again, here.namespace).run(run.id);
    expect(migrated).toEqual({ ...run, configJson, removedConfigPaths: [] });
    await again.close();
  },
);
