/** Says at the end of `npm test` which engines its tests ran on. */
export function teardown(): void {
  console.log('test/store ran on SQLite and Postgres, all other tests on SQLite. On Postgres: npm run test:postgres');
}
