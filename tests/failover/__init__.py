"""The queue on several servers and on the way from one to another: a cluster under Patroni whose leader is
switched, killed and frozen under load; dumps; major upgrades; history that is replicated elsewhere.

`make failover` runs all of it. The tests of the cluster need Patroni and etcd (`apt-get install patroni
etcd-server`), and PYWORKER_FAILOVERS says how often each fault strikes (2)."""
