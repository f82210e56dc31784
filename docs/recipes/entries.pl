#!/usr/bin/perl
# The entry "report", from Perl alone: no module but those of the smallest installation.
# REDIS_URL is what redbeat_redis_url is in your configuration.
#   REDIS_URL=redis://127.0.0.1:6379/0 perl entries.pl add|change|pause|resume|run|history|delete
use strict;
use warnings;
use IO::Socket::INET;

my ($name, $base) = ('report', 'redbeat:');    # in a cluster '{redbeat}:', and a client that follows MOVED
my ($schedule, $wake, $key, $history, $backfilled);
my $task = $ENV{TASK} // 'proj.tasks.report';
my $command = $ARGV[0] // '';

my %commands = (
    # due at once (score 0), then every minute
    add => sub { write_entry(60, 'weekly', 'true', ['ZADD', $schedule, 0, $key]) },
    # another argument and another interval; XX: never bring back what was deleted
    change => sub { write_entry(30, 'daily', 'true', ['ZADD', $schedule, 'XX', 0, $key]) },
    # kept, and not run; enabled is for celery-redbeat 2.x, too, and the policy says why
    pause => sub {
        my $policy = '{"paused": true, "pause_note": "the numbers are wrong"}';
        write_entry(30, 'daily', 'false', ['HSET', $key, 'policy', $policy]);
    },
    resume => sub {
        write_entry(30, 'daily', 'true', ['HDEL', $key, 'policy'], ['ZADD', $schedule, 'XX', 0, $key]);
    },
    run => sub { together(['ZADD', $schedule, 'XX', 0, $key]) },    # now, and then as its schedule says
    history => sub { print "$_\n" for redis('LRANGE', $history, 0, -1) },    # JSON, the newest run first
    delete => sub { together(['ZREM', $schedule, $key], ['DEL', $key, $history, $backfilled]) },
);
die "usage: REDIS_URL=... perl $0 add|change|pause|resume|run|history|delete\n" unless $commands{$command};

my $url = $ENV{REDIS_URL} or die "REDIS_URL is not set; use the value of redbeat_redis_url\n";
my ($user, $password, $host, $port, $database) =
    $url =~ m{^redis://(?:([^:@/]*):([^@/]*)@)?([^:/]+)(?::(\d+))?(?:/(\d+))?$}
    or die "REDIS_URL is no redis://user:password\@host:port/database\n";
my $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port // 6379) or die "$host: $@\n";
if (defined $password) {
    s/%([0-9a-fA-F]{2})/chr hex $1/ge for $user, $password;
    redis('AUTH', $user || 'default', $password);
}
redis('SELECT', $database) if $database;

# while the number of shards is changed, the entry may still be where it was before
my ($shards, $state, $former) = map { redis('HGET', "$base:layout", $_) } qw(shards state former);
my $part = prefix($shards);
$part = prefix($former) if ($state // '') eq 'moving' and redis('EXISTS', prefix($former) . $name) eq '1';
$key = "$part$name";
($schedule, $wake, $history, $backfilled) =
    ("$part:schedule", "$part:wake", "$part:history:$name", "$part:backfilled:$name");
$commands{$command}->();

# prefix SHARDS: of the entry's keys; CRC-16 (XMODEM) of the bytes of its name says which shard it is in
sub prefix {
    my $shards = shift || return $base;
    my $crc = 0;
    for my $byte (unpack 'C*', $name) {
        $crc ^= $byte << 8;
        $crc = ($crc << 1 ^ ($crc >> 15) * 0x1021) & 0xFFFF for 1 .. 8;
    }
    return sprintf '{redbeat:%d}:', $crc % $shards;
}

# write_entry EVERY-SECONDS ARGUMENT ENABLED, and what is to be done with it
sub write_entry {
    my ($every, $argument, $enabled, @more) = @_;
    my $definition = qq({"name": "$name", "task": "$task", "args": ["$argument"], "kwargs": {}, "options": {}, )
        . qq("schedule": {"__type__": "interval", "every": $every, "relative": false}, "enabled": $enabled});
    together(['HSET', $key, 'definition', $definition], @more);
}

# all of it or nothing; the message is optional: beat looks at once, and not only within a second
sub together {
    redis(@$_) for ['MULTI'], @_, ['PUBLISH', $wake, $command], ['EXEC'];
}

# one command of Redis; returns its reply
sub redis {
    print $socket '*', scalar @_, "\r\n", map { '$' . length . "\r\n$_\r\n" } @_;
    $socket->flush;
    return reply();
}

sub reply {
    my ($kind, $rest) = (<$socket> // die "Redis has closed the connection\n") =~ /^(.)(.*)\r\n/;
    die "Redis: $rest\n" if $kind eq '-';
    return map { reply() } 1 .. $rest if $kind eq '*';
    return $rest if $kind ne '$';
    return undef if $rest < 0;
    read $socket, my $text, $rest + 2;
    return substr $text, 0, $rest;
}
