# Generates what docker-compose.yml needs into /secrets (or $SECRETS), each file for the user of one image. Runs again
# at each start and keeps what is there, so that a password of the database never changes. Expects root and openssl.
set -euo pipefail
umask 077
cd "${SECRETS:-/secrets}"
readonly anabranch=1000 postgres=999 haproxy=99 pgadmin=5050

# give USER FILE: takes the content from standard input, unless the file is there.
give() {
  [ -s "$2" ] && return
  cat >"$2.new"
  chown "$1:$1" "$2.new"
  mv "$2.new" "$2"
}

password() { openssl rand -hex 24; }

chmod 755 .
[ -n "${POSTGRES_PASSWORD:-}" ] || POSTGRES_PASSWORD=$(password)
give "$postgres" postgres-password <<<"$POSTGRES_PASSWORD"
read -r POSTGRES_PASSWORD <postgres-password
give "$anabranch" pgpass <<<"db:5432:*:$POSTGRES_USER:$POSTGRES_PASSWORD"
give "$pgadmin" pgadmin-pgpass <<<"db:5432:*:$POSTGRES_USER:$POSTGRES_PASSWORD"
give "$pgadmin" pgadmin-password <<<"$(password)"

if [ ! -s tls.crt ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj '/CN=Anabranch of docker compose' \
    -keyout ca.key -out ca.crt
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 -subj /CN=anabranch \
    -addext subjectAltName=DNS:anabranch,DNS:second,DNS:balancer,DNS:localhost,IP:127.0.0.1 \
    -addext basicConstraints=critical,CA:FALSE -CA ca.crt -CAkey ca.key -keyout tls.key -out tls.crt
  chown "$anabranch:$anabranch" tls.key
  chmod 644 ca.crt tls.crt
fi
give "$haproxy" balancer.pem < <(cat tls.crt tls.key)
# The server writes the first API key here.
[ -d keys ] || install -d -m 700 -o "$anabranch" -g "$anabranch" keys
