/**
 * The service of a later version, which has one more migration. DIES_IN says where it kills itself while it migrates:
 * "statements", or the number of the step before which a transaction of the conversion ends.
 */
import process from 'node:process';
import { addMigration, convertSteps } from '../support/added_migration.ts';

const die = () => process.kill(process.pid, 'SIGKILL');
const place = process.env.DIES_IN;

addMigration(
  convertSteps({
    ...(place === 'statements' ? { onStatements: die } : {}),
    onConverted: ({ done }) => {
      if (`${done}` === place) die();
    },
  }),
);
await import('../../src/main.ts');
